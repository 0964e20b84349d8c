"""Who writes a checkpoint, and what a save leaves that fails."""

from __future__ import annotations

import contextlib
import resource
import tempfile
from pathlib import Path
from typing import Any, Iterator, List

import pytest

tf = pytest.importorskip("tensorflow", reason="TensorFlow is not installed")

from slurm_resolver.errors import ResumeError  # noqa: E402
from slurm_resolver.tf.training.checkpoint_writer import CheckpointWriter, read_together  # noqa: E402

pytestmark = pytest.mark.tensorflow


def files(folder: Path) -> List[str]:
    return sorted(path.name for path in folder.rglob("*"))


def saved(*numbers: int) -> List[str]:
    ends = ("data-00000-of-00001", "index")
    return ["checkpoint", *(f"ckpt-{number}.{end}" for number in numbers for end in ends)]


def local(**options: Any) -> Any:
    """A variable whose parts lie in all replicas."""
    return tf.Variable(
        1.0,
        trainable=False,
        synchronization=tf.VariableSynchronization.ON_READ,
        aggregation=tf.VariableAggregation.SUM,
        **options,
    )


def test_a_variable_of_keras_3_is_what_it_holds() -> None:
    keras = pytest.importorskip("keras", minversion="3.10", reason="this Keras knows none")
    for how, together in {"on_read": True, "auto": False}.items():
        variable = keras.Variable(1.0, synchronization=how, aggregation="sum")
        assert read_together(tf.train.Checkpoint(held=variable)) == together


@pytest.mark.parametrize(("make", "together"), [(lambda: tf.Variable(1.0), False), (local, True)])
def test_only_one_writes_to_the_folder_that_all_share(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, make: Any, together: bool
) -> None:
    shared, own = tmp_path / "shared", tmp_path / "own"
    own.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(own))
    checkpoint, written = tf.train.Checkpoint(variable=make()), []
    write = checkpoint.write

    def note(path: str) -> Any:
        done = write(path)
        written.extend(files(own))
        return done

    monkeypatch.setattr(checkpoint, "write", note)
    CheckpointWriter(checkpoint, str(shared), 2, leads=False).save()
    assert not shared.exists()
    assert bool(written) == together
    assert files(own) == []
    assert int(checkpoint.save_counter) == 1


@contextlib.contextmanager
def largest_file(size: int) -> Iterator[None]:
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


def test_what_cannot_be_written_leaves_nothing(tmp_path: Path) -> None:
    checkpoint = tf.train.Checkpoint(x=tf.Variable(tf.zeros([100_000])))
    writer = CheckpointWriter(checkpoint, str(tmp_path), 2, leads=True)
    assert writer.save() == f"{tmp_path}/ckpt-1"
    expected = r"ckpt-2 cannot be written to .*File too large\. Expected .* is kept \(ckpt-1\)"
    with largest_file(10_000), pytest.raises(ResumeError, match=expected):
        writer.save()
    assert files(tmp_path) == saved(1)
    assert writer.save() == f"{tmp_path}/ckpt-3"
    assert files(tmp_path) == saved(1, 3)


def test_what_was_cut_off_is_removed_by_the_next_start(tmp_path: Path) -> None:
    checkpoint = tf.train.Checkpoint(x=tf.Variable(1.0))
    CheckpointWriter(checkpoint, str(tmp_path), 2, leads=True).save()
    (tmp_path / "ckpt-2_temp").mkdir()
    (tmp_path / "ckpt-2_temp" / "part-00000-of-00001.data-00000-of-00001.tempstate7").touch()
    (tmp_path / "checkpoint.tmp5f").touch()
    (tmp_path / "mine_temp").touch()
    CheckpointWriter(checkpoint, str(tmp_path), 2, leads=False)
    assert (tmp_path / "ckpt-2_temp").exists()
    CheckpointWriter(checkpoint, str(tmp_path), 2, leads=True)
    assert files(tmp_path) == [*saved(1), "mine_temp"]
