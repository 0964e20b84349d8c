"""A folder with a checkpoint that cannot be read: which one a training goes on from."""

from __future__ import annotations

import logging
import re
import shutil
import threading
from pathlib import Path
from typing import Any, Dict, List, Tuple

import pytest

tf = pytest.importorskip("tensorflow", reason="TensorFlow is not installed")

import slurm_resolver as sr  # noqa: E402
from slurm_resolver.errors import ResumeError  # noqa: E402
from slurm_resolver.tf.training.kept_checkpoints import names, restore_newest  # noqa: E402

pytestmark = pytest.mark.tensorflow

STEPS = 3  # of the only epoch; each is saved, and then the end
END = (1, 0, 6.0)


@pytest.fixture(scope="module")
def termination() -> Any:
    return sr.termination_config(None, requeue=None, signals=())


def train(folder: Path, termination: Any) -> Tuple[int, int, float]:
    """Returns where it begins: the epoch, the step, and the sum of the steps' numbers so far."""
    total = tf.Variable(0.0)
    loop = sr.ResumableLoop(str(folder), termination=termination, save_every=1, total=total)
    begin = loop.epoch, loop.step, float(total.numpy())
    for _ in loop.epochs(1):
        for number in loop.batches(range(1, STEPS + 1)):
            total.assign_add(number)
    assert total.numpy() == 6
    return begin


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory, termination: Any) -> Path:
    """A folder whose newest checkpoints are of step 3, and of the end after it."""
    folder = tmp_path_factory.mktemp("made")
    train(folder, termination)
    assert names(str(folder)) == ["ckpt-4", "ckpt-3"]
    return folder


@pytest.fixture
def folder(made: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(made, tmp_path / "checkpoints"))


DATA, INDEX = "ckpt-4.data-00000-of-00001", "ckpt-4.index"


def cut(path: Path) -> None:
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])


def flip(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)


def empty(path: Path) -> None:
    path.write_bytes(b"")


@pytest.mark.parametrize("name", [DATA, INDEX])
@pytest.mark.parametrize("damage", [cut, flip, empty, Path.unlink])
def test_the_one_before_is_used_and_the_damaged_one_is_left(
    folder: Path, termination: Any, name: str, damage: Any, caplog: pytest.LogCaptureFixture
) -> None:
    damage(folder / name)
    left = {path.name: path.read_bytes() for path in folder.glob("ckpt-4*")}
    with caplog.at_level(logging.WARNING):
        assert train(folder, termination) == (0, 3, 6.0)
    if (name, damage) != (INDEX, Path.unlink):  # which leaves no checkpoint to speak of
        (said,) = [text for text in caplog.messages if "cannot be read" in text]
        assert re.search(rf"\({folder}/ckpt-4: .*; it is left as it is, and ckpt-3 is used", said)
        # the next save is another one, and the next start goes on from that
        assert {path.name: path.read_bytes() for path in folder.glob("ckpt-4*")} == left
        assert names(str(folder))[0] == "ckpt-5"
    assert train(folder, termination) == END


@pytest.mark.parametrize("damage", [Path.unlink, cut])
def test_without_the_file_that_lists_them_they_are_found(
    folder: Path, termination: Any, damage: Any
) -> None:
    damage(folder / "checkpoint")
    assert train(folder, termination) == END


def test_where_none_can_be_read_it_says_what_is_wrong_with_each(
    folder: Path, termination: Any
) -> None:
    flip(folder / DATA)
    cut(folder / "ckpt-3.index")
    expected = r"none of the checkpoints in .*/ckpt-4: .*hecksum.*; .*/ckpt-3: .*sstable"
    with pytest.raises(ResumeError, match=expected):
        train(folder, termination)


def test_one_of_another_program_is_no_beginning(tmp_path: Path, termination: Any) -> None:
    manager = tf.train.CheckpointManager(tf.train.Checkpoint(x=tf.Variable(1)), str(tmp_path), 1)
    manager.save()
    with pytest.raises(ResumeError, match=r"ckpt-1 was saved by another program .*of its own"):
        train(tmp_path, termination)


def together(folders: List[Path]) -> List[Any]:
    """Returns what ranks restore, or the error that they raise, each in a folder of its own."""
    barrier, told = threading.Barrier(len(folders)), {}
    results: List[Any] = [None] * len(folders)

    def rank(index: int) -> None:
        def compare(own: Any) -> Dict[str, Any]:
            barrier.wait(60)
            told[f"worker_{index}"] = own
            barrier.wait(60)
            return {f"worker_{other}": told[f"worker_{other}"] for other in range(len(folders))}

        checkpoint = tf.train.Checkpoint(total=tf.Variable(0.0))
        try:
            restored = restore_newest(checkpoint, str(folders[index]), compare, leads=index == 0)
            results[index] = Path(restored.path).name if restored else None
        except ResumeError as error:
            results[index] = str(error)

    threads = [threading.Thread(target=rank, args=(index,)) for index in range(len(folders))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    return results


def test_what_one_rank_cannot_read_none_uses(
    made: Path, folder: Path, caplog: pytest.LogCaptureFixture
) -> None:
    flip(folder / DATA)
    assert together([made, folder, made]) == ["ckpt-3"] * 3
    (said,) = caplog.messages
    assert "as worker_1 sees it" in said


def test_ranks_that_see_different_folders_say_so(made: Path, tmp_path: Path) -> None:
    for said in together([made, tmp_path]):
        assert ": worker_0: ckpt-4 and ckpt-3; worker_1: none. Expected the same" in said
    assert together([tmp_path / "none", tmp_path / "nothing"]) == [None, None]
