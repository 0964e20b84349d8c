"""A folder with a checkpoint that cannot be read: which one a training goes on from."""

from __future__ import annotations

import json
import logging
import os
import re
import shutil
import threading
from pathlib import Path
from typing import Any, Callable, Dict, List, Tuple

import pytest

tf = pytest.importorskip("tensorflow", reason="TensorFlow is not installed")

import slurm_resolver as sr  # noqa: E402
from slurm_resolver.errors import ResumeError  # noqa: E402
from slurm_resolver.tf.training import kept_checkpoints  # noqa: E402
from slurm_resolver.tf.training.checkpoint import counters  # noqa: E402

pytestmark = pytest.mark.tensorflow

STEPS = 3  # of the only epoch; each is saved, and then the end
END = (1, 0, 6.0)


@pytest.fixture(scope="module")
def termination() -> Any:
    return sr.termination_config(None, requeue=None, signals=())


def train(folder: Path, termination: Any, steps: int = STEPS) -> Tuple[int, int, float]:
    """Returns where it begins: the epoch, the step, and the sum of the steps' numbers so far."""
    total = tf.Variable(0.0)
    loop = sr.ResumableLoop(str(folder), termination=termination, save_every=1, total=total)
    begin = loop.epoch, loop.step, float(total.numpy())
    for _ in loop.epochs(1):
        for number in loop.batches(range(1, steps + 1)):
            total.assign_add(number)
    assert total.numpy() == sum(range(1, steps + 1))
    return begin


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory, termination: Any) -> Path:
    """A folder whose newest checkpoints are of step 3, and of the end after it."""
    folder = tmp_path_factory.mktemp("made")
    train(folder, termination)
    assert kept_checkpoints.names(str(folder)) == ["ckpt-4", "ckpt-3"]
    return folder


@pytest.fixture
def folder(made: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(made, tmp_path / "checkpoints"))


DATA = "ckpt-4.data-00000-of-00001"


def cut(path: Path) -> None:
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])


def flip(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)


def flip_state(path: Path) -> None:
    path.write_bytes(b"\x00" * path.stat().st_size)


# what is done to which file; what the message says of it
DAMAGES: Dict[str, Any] = {
    "data cut": (DATA, cut, rf"{DATA}: "),
    "data empty": (DATA, lambda path: path.write_bytes(b""), rf"{DATA}: "),
    "data changed": (DATA, flip, rf"{DATA}: .*hecksum"),
    "data gone": (DATA, Path.unlink, f"{DATA} is missing"),
    "index cut": ("ckpt-4.index", cut, r"ckpt-4\.index: "),
    "index empty": ("ckpt-4.index", lambda path: path.write_bytes(b""), r"ckpt-4\.index: "),
    "index changed": ("ckpt-4.index", flip, r"ckpt-4\.index: "),
    "index gone": ("ckpt-4.index", Path.unlink, r"ckpt-4\.index is missing"),
}


@pytest.mark.parametrize("case", DAMAGES)
def test_the_one_before_is_used_and_the_damaged_one_is_left(
    folder: Path, termination: Any, case: str, caplog: pytest.LogCaptureFixture
) -> None:
    name, damage, message = DAMAGES[case]
    damage(folder / name)
    left = {path.name: path.read_bytes() for path in folder.glob("ckpt-4*")}
    assert counters(str(folder)) == {"epoch": 0, "step": 3}
    with caplog.at_level(logging.WARNING):
        assert train(folder, termination) == (0, 3, 6.0)
    (said,) = [text for text in caplog.messages if "cannot be read" in text]
    assert "ckpt-3 (epoch 0, step 3) is used instead" in said
    assert re.search(message, said)
    # the next save is another one, and the next start goes on from that
    assert {path.name: path.read_bytes() for path in folder.glob("ckpt-4*")} == left
    listed = tf.train.get_checkpoint_state(str(folder)).all_model_checkpoint_paths
    assert [os.path.basename(path) for path in listed] == ["ckpt-3", "ckpt-5"]
    caplog.clear()
    assert train(folder, termination) == END
    assert "ckpt-5 is the end of epoch 1" in caplog.text
    assert "cannot be read" not in caplog.text


@pytest.mark.parametrize("damage", [Path.unlink, flip_state, cut])
def test_without_the_file_that_lists_them_they_are_found(
    folder: Path, termination: Any, damage: Callable[[Path], None]
) -> None:
    damage(folder / "checkpoint")
    assert train(folder, termination) == END
    assert tf.train.latest_checkpoint(str(folder)) == f"{folder}/ckpt-4"


def test_one_that_was_finished_but_not_listed_is_the_newest(folder: Path, termination: Any) -> None:
    (folder / "checkpoint").write_text('model_checkpoint_path: "ckpt-3"\n')
    assert train(folder, termination) == END


def test_one_that_a_person_has_chosen_is_used(folder: Path, termination: Any) -> None:
    lines = [f'all_model_checkpoint_paths: "ckpt-{number}"\n' for number in (3, 4)]
    (folder / "checkpoint").write_text('model_checkpoint_path: "ckpt-3"\n' + "".join(lines))
    assert train(folder, termination) == (0, 3, 6.0)


def test_where_none_can_be_read_it_says_what_is_wrong_with_each(
    folder: Path, termination: Any
) -> None:
    flip(folder / DATA)
    (folder / "ckpt-3.index").unlink()
    expected = (
        r"none of the checkpoints in .*ckpt-4: .*hecksum.*; ckpt-3: .*ckpt-3.index is missing"
    )
    with pytest.raises(ResumeError, match=expected):
        train(folder, termination)
    with pytest.raises(ResumeError, match=expected):
        counters(str(folder))


def test_one_of_another_program_is_no_beginning(tmp_path: Path, termination: Any) -> None:
    manager = tf.train.CheckpointManager(tf.train.Checkpoint(x=tf.Variable(1)), str(tmp_path), 1)
    manager.save()
    with pytest.raises(ResumeError, match=r"ckpt-1 was saved by another program: .*of its own"):
        train(tmp_path, termination)


def together(folders: List[Path]) -> List[Any]:
    """Returns what ranks choose, or the error that they raise, each in a folder of its own."""
    barrier, told = threading.Barrier(len(folders)), {}
    results: List[Any] = [None] * len(folders)

    def rank(index: int) -> None:
        def compare(own: str) -> Dict[str, str]:
            barrier.wait(60)
            told[f"worker_{index}"] = own
            barrier.wait(60)
            return {f"worker_{other}": told[f"worker_{other}"] for other in range(len(folders))}

        try:
            kept = kept_checkpoints.choose(str(folders[index]), compare, quiet=index > 0)
            results[index] = os.path.basename(kept.path) if kept else None
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
    for name in ("checkpoint", *(path.name for path in folder.glob("ckpt-4*"))):
        (folder / name).unlink()
    assert together([made, folder]) == ["ckpt-3"] * 2


def test_ranks_that_see_different_folders_say_so(
    made: Path, folder: Path, tmp_path: Path, termination: Any
) -> None:
    for said in together([made, tmp_path]):
        assert ": worker_0: ckpt-4 and ckpt-3; worker_1: none. Expected the same" in said
    other = tmp_path / "other"
    train(other, termination, steps=2)
    for path in other.glob("ckpt-3*"):
        path.rename(other / path.name.replace("3", "4", 1))
    (other / "checkpoint").unlink()
    for said in together([made, other]):
        assert "worker_0: ckpt-4 (epoch 1, step 0); worker_1: ckpt-4 (epoch 1, step 0)" in said
    assert together([tmp_path / "none", tmp_path / "nothing"]) == [None, None]


def test_what_a_rank_that_has_ended_told_is_no_list() -> None:
    with pytest.raises(ResumeError, match="worker_1 told nothing, as it has ended"):
        kept_checkpoints.choose(
            "none", lambda own: {"worker_0": own, "worker_1": "nothing, as it has ended"}
        )


def test_ranks_tell_each_other_text(folder: Path) -> None:
    """What ranks tell each other goes through the store as text."""
    told: List[str] = []

    def compare(own: str) -> Dict[str, str]:
        told.append(own)
        return {"worker_0": own}

    kept_checkpoints.choose(str(folder), compare)
    assert json.loads(told[0]) == ["ckpt-4", "ckpt-3"]
