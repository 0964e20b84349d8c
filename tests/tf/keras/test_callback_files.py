"""Callbacks write the same files on two nodes of the real Slurm as in one process."""

from __future__ import annotations

import os
import shlex
import shutil
import tempfile
from collections import defaultdict
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Callable

import keras_callback_files as programs
import pytest
from folders import helper, quiet_helper
from keras_3 import keras
from keras_outcomes import outcomes
from kinds import Fields, Strings
from local_run import captured, in_step
from slurm_cluster import SlurmCluster

from slurm_resolver.tf.keras.files.callback_files import CallbackFiles

PROGRAM = quiet_helper("keras_callback_files.py")
SECONDS = 300
RANKS = (0, 1)
Act = Callable[[Path, int], Any]
Begin = Callable[[Act, Path], "list[Hooks]"]


@pytest.fixture(scope="module")
def alone(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The files of one process."""
    folder = tmp_path_factory.mktemp("alone")
    run([*PROGRAM, "--alone"], folder)
    return folder


@pytest.fixture(scope="module")
def together(real_slurm: SlurmCluster, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The files of two workers."""
    folder = tmp_path_factory.mktemp("together")
    real_slurm.run(
        "srun --kill-on-bad-exit=1 -w n9,n10 -N2 -n2 " + shlex.join(PROGRAM),
        env={"TASK_OUTPUT": str(folder)},
        timeout=SECONDS,
    )
    return folder


def run(command: Strings, folder: Path) -> None:
    environment = {
        **os.environ,
        "TASK_OUTPUT": str(folder),
        "CUDA_VISIBLE_DEVICES": "",
    }
    captured(command, status=0, env=environment, timeout=SECONDS)


@pytest.mark.parametrize("name", programs.PROGRAMS)
def test_two_workers_write_what_one_process_writes(name: str, alone: Path, together: Path) -> None:
    found = programs.contents(together / name)
    expected = programs.contents(alone / name)
    if name == "own":
        for path in [*expected]:
            expected[path.replace("worker-0", "worker-1")] = expected[path]
    assert [errors.get(name) for errors in outcomes(together, ["0.json", "1.json"])] == [None] * 2
    assert found == expected


@pytest.mark.nightly
def test_orbax_saves_once_and_another_number_of_workers_goes_on(tmp_path: Path) -> None:
    pytest.importorskip("orbax.checkpoint", reason="orbax-checkpoint is not installed")
    program = helper("keras_orbax.py", "-W", "ignore")
    for name, command in {
        "alone": [*program, "--alone"],
        "together": in_step("-n 2", *program),
    }.items():
        folder = tmp_path / name
        folder.mkdir()
        run(command, folder)
    (expected,) = outcomes(tmp_path / "alone", ["0"])
    assert expected["saved"] == ["1", "2", "3"]
    for found in outcomes(tmp_path / "together", ["0", "1"]):
        assert found["saved"] == expected["saved"]
        assert found["losses"] == pytest.approx(expected["losses"], abs=1e-4)


class Service:
    """Passes what one of two workers tells on to both, as the coordination service does."""

    def __init__(self) -> None:
        self.listeners: list[Callable[[Fields], None]] = []

    def client(self, rank: int) -> Any:
        def tell(topic: str, value: str) -> None:
            for listener in self.listeners:
                listener({"told": topic, "value": value, "rank": rank})

        return SimpleNamespace(
            address=SimpleNamespace(rank=rank),
            listen=lambda key, listener: self.listeners.append(listener),
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


def write_in_folders(folder: Path, epoch: int) -> None:
    path = folder / f"{epoch}"
    os.makedirs(path / "deep")
    write(path / "deep" / "file", epoch)


def remove_folder(folder: Path, epoch: int) -> None:
    path = folder / "file"
    path.mkdir()
    write(path / "file", epoch)
    shutil.rmtree(path)


def replace_by_temporary(folder: Path, epoch: int) -> None:
    with tempfile.NamedTemporaryFile("w", dir=folder, delete=False) as file:
        file.write(f"{epoch}")
    os.replace(file.name, folder / "file")


def copy(folder: Path, epoch: int) -> None:
    write(folder / "file", epoch)
    shutil.copy2(folder / "file", folder / "copy")


def rename(folder: Path, epoch: int) -> None:
    write(folder / "file", epoch)
    (folder / "file").rename(folder / "last")


def remove(folder: Path, epoch: int) -> None:
    write(folder / "file", epoch)
    os.remove(folder / "file")


def keep_the_last(folder: Path, epoch: int) -> None:
    for path in folder.glob("[0-9]"):
        path.unlink()
    write(folder / f"{epoch}", "")


def use_descriptor(folder: Path, epoch: int) -> None:
    descriptor = os.open(folder / "file", os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    os.write(descriptor, b"x")
    os.close(descriptor)


# What a hook does in each of two epochs. The file `old` exists before.
ACTS: dict[str, Act] = {
    "append": lambda folder, epoch: write(folder / "file", epoch, "a"),
    "append to old": lambda folder, epoch: write(folder / "old", epoch, "a"),
    "write anew": lambda folder, epoch: write(folder / "file", epoch),
    "create": lambda folder, epoch: write(folder / f"{epoch}", "", "x"),
    "remove old": lambda folder, epoch: (folder / "old").unlink(missing_ok=True),
    "link": lambda folder, epoch: os.symlink("old", folder / f"link {epoch}"),
    "add to what is read": add_to_what_is_read,
    "write in folders": write_in_folders,
    "remove": remove,
    "remove folder": remove_folder,
    "rename": rename,
    "replace by temporary": replace_by_temporary,
    "copy": copy,
    "keep the last": keep_the_last,
    "use descriptor": use_descriptor,
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
        found.append(texts(folder))
    assert found[1] == found[0]


def texts(folder: Path) -> dict[str, str | None]:
    found: dict[str, str | None] = defaultdict()
    for path in folder.rglob("*"):
        found[str(path.relative_to(folder))] = path.read_text() if path.is_file() else None
    return found


def test_what_only_one_worker_writes_is_read_by_all(workers: Begin, tmp_path: Path) -> None:
    read: Strings = []
    first, second = workers(lambda folder, epoch: write(folder / "file", "text"), tmp_path)
    second.act = lambda folder, epoch: read.append((folder / "file").read_text())
    first.on_epoch_end(0)
    first.on_epoch_end(1)
    with pytest.raises(FileNotFoundError):  # it might still be written
        second.on_epoch_end(0)
    second.on_epoch_end(1)
    assert read == ["text"]


def test_a_path_that_differs_between_workers_is_written_by_each(
    workers: Begin, tmp_path: Path
) -> None:
    first, second = workers(lambda folder, epoch: write(folder / "of 0", epoch), tmp_path)
    second.act = lambda folder, epoch: write(folder / "of 1", epoch)
    first.on_epoch_end(0)
    second.on_epoch_end(0)
    assert sorted(os.listdir(tmp_path)) == ["of 0", "of 1"]
