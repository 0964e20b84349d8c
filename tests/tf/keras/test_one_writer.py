"""Processes save the same content to the same path, without Keras and without Slurm."""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import types
from pathlib import Path
from typing import Any

import pytest
from kinds import Strings

from slurm_resolver.errors import FitError, SavingError
from slurm_resolver.tf.keras.files import callbacks, saving

PROCESSES = 4


def test_after_one_that_failed_the_next_writes(tmp_path: Path) -> None:
    path = tmp_path / "model"
    marker = tmp_path / "failed"
    context = multiprocessing.get_context("fork")
    barrier = context.Barrier(PROCESSES)

    def task() -> None:
        def write(name: str) -> None:
            Path(name).write_text("a part")
            try:
                marker.touch(exist_ok=False)
            except FileExistsError:
                Path(name).write_text("all of it")
            else:
                raise OSError("no space left")

        barrier.wait()
        saving.write_once(str(path), "state", write)
        assert path.read_text() == "all of it"

    processes = [context.Process(target=task) for _ in range(PROCESSES)]
    for process in processes:
        process.start()
    for process in processes:
        process.join(60)
    assert sorted(process.exitcode or 0 for process in processes) == [0] * (PROCESSES - 1) + [1]
    assert path.read_text() == "all of it"


def test_one_that_has_stopped_is_not_waited_for_for_ever(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(saving, "STALLED_SECONDS", 0.1)

    path = str(tmp_path / "model")

    def stops(name: str) -> None:
        with pytest.raises(SavingError, match=r"model: another task is saving it .* remove that"):
            saving.write_once(path, "state", os.mkdir)
        Path(name).touch()

    saving.write_once(path, "state", stops)


def test_a_folder_keeps_what_does_not_belong_to_it(tmp_path: Path) -> None:
    path = tmp_path / "exported"
    (path / "variables").mkdir(parents=True)
    (path / "variables" / "data").write_text("old")
    (path / "README").write_text("mine")

    def write(name: str) -> None:
        os.makedirs(os.path.join(name, "variables"))
        Path(name, "variables", "data").write_text("new")
        Path(name, "model").write_text("new")

    saving.write_once(str(path), "state", write)
    texts: Any = {found.name: found.read_text() for found in path.rglob("*") if found.is_file()}
    assert texts == {
        "README": "mine",
        "data": "new",
        "model": "new",
    }


class Workers:
    """Two workers, of which each has found a text in the folder of its BackupAndRestore."""

    names = ("worker 0", "worker 1")

    def __init__(self, *found: Any) -> None:
        self._found = found

    def exchange(self, call: str, value: Any) -> list[Any]:
        return [[text, "token"] for text in self._found]


@pytest.mark.parametrize(
    ("folders", "writers"),
    [
        (["a", "a"], 1),
        (["a", "b"], 2),
    ],
)
def test_one_worker_on_each_file_system_writes_a_backup(
    tmp_path: Path, folders: Strings, writers: int
) -> None:
    """Two folders stand for the disks of two nodes."""
    callback = types.SimpleNamespace(on_train_end=None)
    workers = Workers(None, None)
    changes = []
    with contextlib.ExitStack() as stack:
        for folder in folders:
            changes.append(
                stack.enter_context(callbacks.one_backup(callback, str(tmp_path / folder), workers))
            )
    assert sum("_save_model" not in changed for changed in changes) == writers
    assert sum("delete_checkpoint" not in changed for changed in changes) == writers
    assert not list(tmp_path.glob("*/*"))


def test_workers_that_find_other_backups_do_not_train(tmp_path: Path) -> None:
    callback = types.SimpleNamespace(backup_dir="backup")
    workers = Workers('{"epoch": 2}', None)
    with pytest.raises(
        FitError,
        match=(
            r"BackupAndRestore\('backup'\).*contains .* 2} in worker 0, "
            "and no backup in worker 1"
        ),
    ):
        callbacks.one_backup(callback, str(tmp_path), workers).__enter__()
