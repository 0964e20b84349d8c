"""Processes that save the same to the same path, without Keras and without Slurm."""

from __future__ import annotations

import multiprocessing
import os
from pathlib import Path
from typing import Any, Callable, List

import pytest

pytest.importorskip("tensorflow")
from slurm_resolver.errors import SavingError
from slurm_resolver.tf.keras import saving

pytestmark = pytest.mark.tensorflow
PROCESSES = 4


def file_with(text: str) -> Callable[[str], object]:
    return lambda path: Path(path).write_text(text)


def together(action: Callable[[int], None]) -> List[int]:
    """Returns the exit statuses of processes that do this at the same time."""
    context = multiprocessing.get_context("fork")
    barrier = context.Barrier(PROCESSES)

    def task(index: int) -> None:
        barrier.wait()
        action(index)

    processes = [context.Process(target=task, args=(index,)) for index in range(PROCESSES)]
    for process in processes:
        process.start()
    for process in processes:
        process.join(60)
    return [process.exitcode or 0 for process in processes]


def test_one_writes_and_all_find_it(tmp_path: Path) -> None:
    path, log = tmp_path / "model", tmp_path / "log"
    others = multiprocessing.get_context("fork").Semaphore(0)

    def write(name: str) -> None:
        with log.open("a") as lines:
            lines.write("written\n")
        for _ in range(PROCESSES - 1):  # by now all others wait
            assert others.acquire(timeout=180)
        Path(name).write_text("all of it")

    def task(index: int) -> None:
        made = saving._make

        def make(folder: str) -> bool:
            first = made(folder)
            if not first:
                others.release()
                saving._make = made
            return first

        saving._make = make
        saving.write_once(str(path), "state", write)
        assert path.read_text() == "all of it"

    assert together(task) == [0] * PROCESSES
    assert log.read_text() == "written\n"
    assert sorted(found.name for found in tmp_path.iterdir()) == ["log", "model"]


def test_after_one_that_failed_the_next_writes(tmp_path: Path) -> None:
    path, marker = tmp_path / "model", tmp_path / "failed"

    def task(index: int) -> None:
        def write(name: str) -> None:
            Path(name).write_text("a part")
            try:
                marker.touch(exist_ok=False)
            except FileExistsError:
                Path(name).write_text("all of it")
            else:
                raise OSError("no space left")

        saving.write_once(str(path), "state", write)
        assert path.read_text() == "all of it"

    assert sorted(together(task)) == [0] * (PROCESSES - 1) + [1]
    assert path.read_text() == "all of it"


def test_one_that_has_stopped_is_not_waited_for_for_ever(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(saving, "STALLED_SECONDS", 0.1)

    path = str(tmp_path / "model")

    def stops(name: str) -> None:
        with pytest.raises(SavingError, match=r"model: another task has begun .* remove that"):
            saving.write_once(path, "state", file_with(""))
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
    assert texts == {"README": "mine", "data": "new", "model": "new"}
