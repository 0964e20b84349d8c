"""Processes save the same content to the same path, without Keras and without Slurm."""

from __future__ import annotations

import multiprocessing
import os
from pathlib import Path
from typing import Any

import pytest
from keras_3 import keras

from slurm_resolver.errors import SavingError
from slurm_resolver.tf.keras.configuration import describe_call
from slurm_resolver.tf.keras.files import saving
from slurm_resolver.timeouts import Timeouts

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
    monkeypatch.setattr(Timeouts, "saving", 0.1)

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


def test_the_backup_that_a_worker_finds_is_compared(tmp_path: Path) -> None:
    callback = keras.callbacks.BackupAndRestore(str(tmp_path))

    def described() -> str:
        return list(describe_call("fit", {"callbacks": [callback]}))[-1].text

    assert described() == repr(f"no backup in {tmp_path}, a folder that all workers have to share")
    (tmp_path / "training_metadata.json").write_text('{"epoch": 2}')
    assert described() == repr('{"epoch": 2}')
