"""Callbacks write the same files on two nodes of the real Slurm as in one process."""

from __future__ import annotations

import contextlib
import functools
import os
import re
import shutil
import sqlite3
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Callable

import h5py  # type: ignore[import-untyped]
import pytest
import tensorflow as tf
from folders import quiet_helper
from keras_3 import keras
from keras_outcomes import outcomes
from kinds import Fields, Strings
from pytest_mock import MockerFixture
from slurm_cluster import SlurmCluster
from told_by_workers import run, run_on_slurm

from slurm_resolver.tf.keras.files.callback_files import CallbackFiles

PROGRAM = quiet_helper("keras_callback_files.py")
RANKS = (0, 1)
Act = Callable[[Path, int], Any]
Begin = Callable[[Act, Path], "list[Hooks]"]


def contents(folder: Path) -> Fields:
    """Returns all files below a folder; the names of event files have the host and process."""
    found: Fields = {}
    for path in sorted(folder.rglob("*")):
        name = re.sub(r"tfevents.*", "tfevents", str(path.relative_to(folder)))
        assert name not in found
        if path.is_dir() or name.endswith((".keras", "tfevents")):
            found[name] = path.is_dir()
        elif name.endswith(".csv"):
            found[name] = re.sub(r"(\.\d\d)\d+", r"\1", path.read_text())
        else:
            found[name] = path.read_bytes()
    return found


def test_two_workers_write_what_one_process_writes(
    real_slurm: SlurmCluster, tmp_path: Path
) -> None:
    run([*PROGRAM, "files", "--alone"], tmp_path / "alone", workers=0)
    together = tmp_path / "together"
    run_on_slurm(real_slurm, [*PROGRAM, "files"], together)
    expected = contents(tmp_path / "alone")
    assert expected["log.txt"].count(b"\n") == 3
    for kind in ("csv", "txt"):
        expected[f"of-worker-1.{kind}"] = expected[f"of-worker-0.{kind}"]
    assert contents(together) == expected


@pytest.mark.nightly
def test_orbax_saves_once_and_another_number_of_workers_goes_on(tmp_path: Path) -> None:
    pytest.importorskip("orbax.checkpoint", reason="orbax-checkpoint is not installed")
    run([*PROGRAM, "orbax", "--alone"], tmp_path / "alone", workers=0)
    run([*PROGRAM, "orbax"], tmp_path / "together")
    (expected,) = outcomes(tmp_path / "alone", ["0"])
    assert expected["saved"] == ["1", "2"]
    for found in outcomes(tmp_path / "together", ["0", "1"]):
        assert found["saved"] == expected["saved"]
        assert found["losses"] == pytest.approx(expected["losses"], abs=1e-4)


class Service:
    """Passes what one of two workers tells on to both, as the coordination service does."""

    def __init__(self) -> None:
        self.told: dict[str, Fields] = {}

    def client(self, rank: int) -> Any:
        def tell(topic: str, value: str) -> None:
            self.told.setdefault(topic, {"value": value, "rank": rank})

        return SimpleNamespace(
            address=SimpleNamespace(rank=rank),
            told=self.told,
            tell=tell,
            wait_for=lambda predicate: predicate(),
            refusal="",
        )


class Hooks(keras.callbacks.Callback):  # type: ignore[misc]
    """Calls `act(folder, epoch)` in each epoch."""

    def __init__(self, act: Act, folder: Path) -> None:
        super().__init__()
        self.act = act
        self.folder = folder

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        self.act(self.folder, epoch)


def write(path: Path, text: object, mode: str = "w") -> None:
    with open(path, mode) as file:
        file.write(f"{text}")


def add_to_what_is_read(folder: Path, epoch: int) -> None:
    path = folder / "file"
    write(path, path.read_text() + "+" if path.exists() else "+")


def remove_folder(folder: Path, epoch: int) -> None:
    path = folder / "file"
    path.mkdir()
    write(path / "file", epoch)
    shutil.rmtree(path)


def replace_by_temporary(folder: Path, epoch: int) -> None:
    with tempfile.NamedTemporaryFile("w", dir=folder, delete=False) as file:
        file.write(f"{epoch}")
    os.replace(file.name, folder / "file")


def use_descriptor(folder: Path, epoch: int) -> None:
    descriptor = os.open(folder / "file", os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    os.write(descriptor, b"x")
    os.close(descriptor)


def use_database(folder: Path, epoch: int) -> None:
    with contextlib.closing(sqlite3.connect(folder / "file.db")) as connection:
        connection.execute(f"CREATE TABLE metrics_{epoch} (loss REAL)")


def append_by_name(folder: Path, epoch: int) -> None:
    with open(mode="a", file=folder / "file") as file:
        file.write(str(epoch))
    os.utime(path=folder / "file")


def use_hdf5(folder: Path, epoch: int) -> None:
    with h5py.File(folder / "file.h5", "a") as file:
        file[f"epoch-{epoch}"] = epoch


def use_summaries(folder: Path, epoch: int) -> None:
    tf.summary.create_file_writer(str(folder / f"{epoch}")).close()


# What a hook does in each of two epochs. The file `old` exists before.
ACTS: dict[str, Act] = {
    "append": lambda folder, epoch: write(folder / "file", epoch, "a"),
    "append by name": append_by_name,
    "append to old": lambda folder, epoch: write(folder / "old", epoch, "a"),
    "create": lambda folder, epoch: write(folder / f"{epoch}", "", "x"),
    "remove old": lambda folder, epoch: (folder / "old").unlink(missing_ok=True),
    "link": lambda folder, epoch: os.symlink("old", folder / f"link {epoch}"),
    "add to what is read": add_to_what_is_read,
    "remove folder": remove_folder,
    "replace by temporary": replace_by_temporary,
    "use descriptor": use_descriptor,
    "use database": use_database,
    "use HDF5": use_hdf5,
    "use summaries": use_summaries,
}


@pytest.fixture
def workers() -> Iterator[Begin]:
    """Returns two workers' callbacks that act; their fits end with the test."""
    with ExitStack() as fits:

        def begin(act: Act, folder: Path) -> list[Hooks]:
            service = Service()
            hooks = [Hooks(act, folder) for _ in RANKS]
            for rank in RANKS:
                of_worker = SimpleNamespace(client=service.client(rank), loss="")
                files = CallbackFiles(of_worker)  # type: ignore[arg-type]
                fits.enter_context(files.sharing([hooks[rank]]))
            return hooks

        yield begin


@pytest.mark.parametrize("order", [(0, 1), (1, 0)])
@pytest.mark.parametrize("act", ACTS.values(), ids=ACTS)
def test_a_path_is_written_once(
    act: Act,
    order: tuple[int, int],
    workers: Begin,
    tmp_path: Path,
) -> None:
    found = []
    for name in ("alone", "together"):
        folder = tmp_path / name
        folder.mkdir()
        (folder / "old").write_text("old")
        hooks = [Hooks(act, folder)] if name == "alone" else workers(act, folder)
        for epoch in range(2):
            for rank in order[: len(hooks)]:
                hooks[rank if len(hooks) > 1 else 0].on_epoch_end(epoch)
        found.append(contents(folder))
    assert found[1] == found[0]


@pytest.mark.parametrize("existed", [False, True])
def test_a_folder_may_be_made_while_a_hook_makes_it(
    existed: bool, workers: Begin, tmp_path: Path, mocker: MockerFixture
) -> None:
    """By another worker, when all save a model there; it is an error if it existed before."""
    folder = tmp_path / "folder"
    make = os.mkdir

    def make_late(path: Path, *mode: int) -> None:
        if path == folder and not folder.exists():
            make(path)
        make(path, *mode)

    if existed:
        folder.mkdir()
    mocker.patch("os.mkdir", functools.wraps(make)(make_late))
    first, _ = workers(lambda path, epoch: os.mkdir(path), folder)
    with pytest.raises(FileExistsError) if existed else contextlib.nullcontext():
        first.on_epoch_end(0)


def test_what_only_one_worker_writes_is_read_by_all(workers: Begin, tmp_path: Path) -> None:
    read: Strings = []
    first, second = workers(lambda folder, epoch: write(folder / "file", "text"), tmp_path)
    second.act = lambda folder, epoch: read.append((folder / "file").read_text())
    first.on_epoch_end(0)
    with pytest.raises(FileNotFoundError):  # it might still be written
        second.on_epoch_end(0)
    second.on_epoch_end(1)
    assert read == ["text"]
