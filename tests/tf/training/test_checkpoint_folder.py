"""A folder of checkpoints: its owner, the checkpoint to resume from, and the files of a save."""

from __future__ import annotations

import logging
import re
import resource
import shutil
import tempfile
import types
from pathlib import Path
from typing import Any, Callable

import pytest
import tensorflow as tf
from captured import Logged, Patch, set_all
from keras_3 import keras
from kinds import Fields, Strings, Texts

import slurm_resolver as sr
from slurm_resolver.errors import ResumeError
from slurm_resolver.slurm.step_variables import SlurmStep
from slurm_resolver.tf.training import backup, checkpoint
from slurm_resolver.tf.training.checkpoint_folder import CheckpointFolder

JOB = {"SLURM_JOB_ID": "41"}
NEXT_JOB = {"SLURM_JOB_ID": "52"}
VARIABLES = (
    "SLURM_JOB_ID",
    "SLURM_ARRAY_JOB_ID",
    "SLURM_ARRAY_TASK_ID",
)


def task(array: str, number: str) -> Texts:
    return {
        "SLURM_JOB_ID": str(int(array) + int(number)),
        "SLURM_ARRAY_JOB_ID": array,
        "SLURM_ARRAY_TASK_ID": number,
    }


def termination() -> Any:
    return sr.termination_config(
        None,
        requeue=None,
        signals=(),
    )


ROWS = tf.zeros([4, 4])


class Trainings:
    """Trainings in one folder, which may belong to different jobs."""

    def __init__(self, folder: Path, patch: Patch) -> None:
        self.folder = folder
        self.patch = patch

    def begin(self, job: Texts, **state: Any) -> Any:
        for name in VARIABLES:
            self.patch.delenv(name, raising=False)
        set_all(self.patch, job)
        state = state or {"x": tf.Variable(0.0)}
        return sr.ResumableLoop(
            str(self.folder),
            termination=termination(),
            **state,
        )

    def train(self, job: Texts, epochs: int, **state: Any) -> None:
        for _ in self.begin(job, **state).epochs(epochs):
            pass


@pytest.fixture
def trainings(tmp_path: Path, monkeypatch: Patch) -> Trainings:
    return Trainings(tmp_path / "checkpoints", monkeypatch)


@pytest.mark.parametrize(
    ("before", "after"),
    [
        (JOB, NEXT_JOB),
        (task("60", "3"), task("70", "3")),
        (JOB, task("60", "3")),
        ({}, {}),
    ],
)
def test_the_next_job_resumes(
    trainings: Trainings, before: Any, after: Any, caplog: Logged
) -> None:
    with caplog.at_level(logging.INFO, logger="slurm_resolver"):
        trainings.train(before, 1)
        trainings.train(after, 2)
        trainings.train(after, 2)
    saved, resumed, saved_again, ended = caplog.messages
    assert saved == f"training saved after epoch 1: {trainings.folder}/ckpt-1"
    assert resumed == f"training resumes from {trainings.folder}/ckpt-1, saved after epoch 1"
    assert saved_again == f"training saved after epoch 2: {trainings.folder}/ckpt-2"
    assert ended.startswith(f"nothing is left to train: {trainings.folder}/ckpt-2 was saved after")


def test_a_restart_that_finds_no_checkpoint_says_so(
    trainings: Trainings, monkeypatch: Patch, caplog: Logged
) -> None:
    monkeypatch.setenv("SLURM_RESTART_COUNT", "1")
    monkeypatch.setattr(checkpoint, "_running", None)  # the first training of a program
    trainings.train(JOB, 1)
    assert (
        f"training starts from the beginning: '{trainings.folder}' holds no checkpoint"
        in caplog.text
    )


def test_another_task_of_an_array_is_refused(trainings: Trainings) -> None:
    """The other task is refused even before the first task saves."""
    trainings.begin(task("60", "3"))
    with pytest.raises(
        ResumeError,
        match="are those of job 60_3, .* and this is job 60_4, "
        rf".* such as {trainings.folder}/\$SLURM_ARRAY_TASK_ID, or remove",
    ):
        trainings.begin(task("60", "4"))


def test_a_training_whose_folder_was_taken_over_saves_no_more(
    trainings: Trainings, monkeypatch: Patch
) -> None:
    first = trainings.begin(JOB)
    monkeypatch.setattr("os.getpid", lambda: 1)
    trainings.train(NEXT_JOB, 1)
    with pytest.raises(ResumeError, match=r"taken over by job 52, .*, while job 41, .* is still"):
        list(first.epochs(1))


def test_a_folder_that_cannot_be_made_is_named(trainings: Trainings) -> None:
    trainings.folder.touch()
    with pytest.raises(ResumeError, match=r"checkpoints'.*; expected a folder to write"):
        trainings.begin(JOB)


def model(*units: int, built: bool = True) -> Fields:
    layers = [keras.layers.Dense(count) for count in units]
    made = keras.Sequential([keras.Input((4,)), *layers] if built else layers)
    optimizer = keras.optimizers.Adam(0.01)
    if built:
        optimizer.build(made.trainable_variables)
    return {"model": made, "optimizer": optimizer}


Make = Callable[[], Fields]
# the saved model, the next model, and the error ("" if the training resumes)
MODELS: dict[str, tuple[Make, Make, str]] = {
    "the same": (lambda: model(4, 4), lambda: model(4, 4), ""),
    "not yet built": (lambda: model(4, 4), lambda: model(4, 4, built=False), ""),
    "a wider layer": (lambda: model(8, 1), lambda: model(16, 1), r"\(4, 8\) .* shape \(4, 16\)"),
    "one layer more": (lambda: model(4), lambda: model(4, 4), "not bound to checkpointed values"),
}


@pytest.mark.parametrize("case", MODELS)
def test_another_model_is_refused(trainings: Trainings, case: str) -> None:
    first, second, error = MODELS[case]
    trainings.train(JOB, 1, **first())
    if not error:
        assert trainings.begin(NEXT_JOB, **second()).epoch == 1
        return
    with pytest.raises(
        ResumeError,
        match=rf"ckpt-1 belongs to another model or program: .*{error}.*Give each training",
    ):
        trainings.train(NEXT_JOB, 2, **second())
    trainings.train(JOB, 2, **first())  # the folder still belongs to the first job


MORE = "another model .*Unresolved object"
OTHER = "ckpt-1 belongs to a fit on other data.* pass other_data=True"


@pytest.mark.parametrize(
    ("change", "error"),
    [
        ({"units": (4,)}, MORE),
        ({"optimizer": "sgd"}, MORE),
        ({"rows": tf.ones([4, 4])}, OTHER),
    ],
)
def test_fit_refuses_a_checkpoint_of_another_fit(
    tmp_path: Path, change: Fields, error: str
) -> None:
    """For example, the checkpoint's model has one more layer or another optimizer."""

    def fit(
        units: tuple[int, ...] = (4, 4),
        optimizer: str = "adam",
        rows: tf.Tensor = ROWS,
        **options: bool,
    ) -> None:
        made = model(*units)["model"]
        made.compile(optimizer, "mse")
        callback = sr.BackupAndResume(str(tmp_path), termination(), **options)
        made.fit(rows, ROWS, verbose=0, callbacks=[callback])
        backup._finished.clear()  # as in the program's next start

    fit()
    with pytest.raises(ResumeError, match=error):
        fit(**change)
    fit()
    fit(rows=tf.ones([4, 4]), other_data=True)


def train(folder: Path) -> tuple[int, int, float]:
    """Returns the epoch and step at which it begins, and the sum of the steps' numbers so far.

    The training has one epoch of three steps, and saves after each step and at the end.
    """
    total = tf.Variable(0.0)
    loop = sr.ResumableLoop(
        str(folder),
        termination=termination(),
        save_every=1,
        total=total,
    )
    begin = loop.epoch, loop.step, float(total.numpy())
    for _ in loop.epochs(1):
        for number in loop.batches(range(1, 4)):
            total.assign_add(number)
    assert total.numpy() == 6
    return begin


END = (
    1,
    0,
    6.0,
)
DATA = "ckpt-4.data-00000-of-00001"
INDEX = "ckpt-4.index"


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder whose newest checkpoints are those of step 3 and of the end."""
    folder = tmp_path_factory.mktemp("made")
    train(folder)
    assert files(folder) == saved(3, 4)
    return folder


@pytest.fixture
def folder(made: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(made, tmp_path / "checkpoints"))


def cut(path: Path) -> None:
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])


def flip(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)


@pytest.mark.parametrize("name", [DATA, INDEX])
@pytest.mark.parametrize("damage", [cut, flip, Path.unlink])
def test_a_damaged_checkpoint_is_left_and_the_one_before_is_used(
    folder: Path, name: str, damage: Any, caplog: Logged
) -> None:
    damage(folder / name)
    left = {path.name: path.read_bytes() for path in folder.glob("ckpt-4*")}
    assert train(folder) == (0, 3, 6.0)
    if (name, damage) != (INDEX, Path.unlink):  # files without an index are no checkpoint
        (text,) = [text for text in caplog.messages if "cannot be read" in text]
        assert re.search(
            rf"\({folder}/ckpt-4: .*; it is left as it is, and {folder}/ckpt-3 is used instead",
            text,
        )
        # the next save gets a new number, and the next start resumes from it
        assert {path.name: path.read_bytes() for path in folder.glob("ckpt-4*")} == left
        assert (folder / "ckpt-5.index").exists()
    assert train(folder) == END


def test_what_an_interrupted_save_has_left_is_removed(folder: Path, tmp_path: Path) -> None:
    outside = tmp_path / "outside"
    (outside / "kept").mkdir(parents=True)
    (folder / "checkpoint.tmp1").touch()
    (folder / "ckpt-8_temp" / "part").mkdir(parents=True)
    (folder / "ckpt-9_temp").symlink_to(outside)
    assert train(folder) == END
    assert files(folder) == saved(3, 4)
    assert files(outside) == ["kept"]


@pytest.mark.parametrize("damage", [Path.unlink, cut])
def test_checkpoints_are_found_without_the_file_that_lists_them(folder: Path, damage: Any) -> None:
    damage(folder / "checkpoint")
    assert train(folder) == END


def test_if_none_can_be_read_the_error_says_what_is_wrong_with_each(
    folder: Path, caplog: Logged
) -> None:
    flip(folder / DATA)
    cut(folder / "ckpt-3.index")
    with pytest.raises(
        ResumeError,
        match=r"none of the checkpoints in .*/ckpt-4: .*hecksum.*; .*/ckpt-3: .*sstable",
    ):
        train(folder)
    assert "is used instead" not in caplog.text


def test_a_checkpoint_of_another_version_says_so(trainings: Trainings, monkeypatch: Patch) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(checkpoint, "pack", lambda value: b'{"epoch": 1}')
        trainings.train(JOB, 1)
    with pytest.raises(ResumeError, match=r"ckpt-1: .*saved by another version of slurm_resolver"):
        trainings.train(JOB, 1)


def open_folder(folder: Path, checkpoint: Any, **of_ranks: Any) -> CheckpointFolder:
    """Opens a folder as one of several ranks."""
    ranks: Any = types.SimpleNamespace(
        **{
            "compare": lambda purpose, value: {"": value},
            "leads": True,
            "step": SlurmStep.read(),
            **of_ranks,
        }
    )
    return CheckpointFolder(str(folder), checkpoint, ranks, max_to_keep=2)


def test_what_one_rank_cannot_read_no_rank_uses(folder: Path, caplog: Logged) -> None:
    others = iter([["", [4, 3]], "its disk is broken", ""])

    def compare(purpose: str, value: Any) -> Fields:
        other = next(others)
        return {"worker 0": value, "worker 1": other, "worker 2": other}

    assert (
        open_folder(folder, tf.train.Checkpoint(), compare=compare).restore_newest()
        == f"{folder}/ckpt-3"
    )
    assert f"({folder}/ckpt-4: its disk is broken, as seen by worker 1, worker 2)" in caplog.text


def test_what_is_wrong_with_the_folder_all_ranks_raise(tmp_path: Path) -> None:
    values = {"worker 0": ["it is full", []], "worker 1": ["", [4]]}
    checkpoint = tf.train.Checkpoint()
    folder = open_folder(tmp_path, checkpoint, compare=lambda purpose, value: values)
    with pytest.raises(ResumeError, match="it is full"):
        folder.restore_newest()


def test_a_checkpoint_that_only_another_rank_finds_is_an_error(tmp_path: Path) -> None:
    others = iter([["", [4]], ""])

    def compare(purpose: str, value: Any) -> Fields:
        return {"worker 0": value, "worker 1": next(others)}

    folder = open_folder(tmp_path, tf.train.Checkpoint(), compare=compare)
    with pytest.raises(
        ResumeError,
        match=r"ckpt-4: .*, as seen by worker 0.* all nodes must share the folder",
    ):
        folder.restore_newest()


def files(folder: Path) -> Strings:
    return sorted(path.name for path in folder.rglob("*"))


def saved(*numbers: int) -> Strings:
    ends = ("data-00000-of-00001", "index")
    names = [f"ckpt-{number}.{end}" for number in numbers for end in ends]
    return ["checkpoint", *names, "slurm_resolver.owner"]


@pytest.mark.parametrize("kind", [tf.Variable, keras.Variable])
@pytest.mark.parametrize("together", [True, False])
def test_a_rank_that_does_not_write_saves_only_what_all_read_together(
    tmp_path: Path, monkeypatch: Patch, kind: Any, together: bool
) -> None:
    """Such a rank saves to a temporary folder, and removes the folder."""
    how = {"synchronization": "on_read" if together else "auto", "aggregation": "sum"}
    if kind is tf.Variable:
        how["synchronization"] = getattr(tf.VariableSynchronization, how["synchronization"].upper())
        how["aggregation"] = tf.VariableAggregation.SUM
    checkpoint = tf.train.Checkpoint(
        variable=kind(
            1.0,
            trainable=False,
            **how,
        )
    )
    written: list[Path] = []
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    monkeypatch.setattr(checkpoint, "write", lambda path: written.append(Path(path)))
    folder = open_folder(tmp_path, checkpoint, leads=False)
    assert folder.restore_newest() is None
    assert folder.save() == ""
    assert [path.parents[1] for path in written] == [tmp_path] * together
    assert files(tmp_path) == []


def test_a_checkpoint_that_cannot_be_written_leaves_nothing(tmp_path: Path) -> None:
    folder = open_folder(
        tmp_path,
        tf.train.Checkpoint(x=tf.Variable(tf.zeros([100_000]))),
    )
    folder.restore_newest()
    assert folder.save() == f"{tmp_path}/ckpt-1"
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (10_000, before[1]))
    try:
        with pytest.raises(tf.errors.OpError, match=r"ckpt-2.*File too large"):
            folder.save()
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert files(tmp_path) == saved(1)
    assert folder.save() == f"{tmp_path}/ckpt-3"
    assert files(tmp_path) == saved(1, 3)
