"""Whose checkpoints a folder keeps, and who may go on from them."""

from __future__ import annotations

import logging
import re
from pathlib import Path
from typing import Any, Callable, Dict, Tuple

import pytest

tf = pytest.importorskip("tensorflow", reason="TensorFlow is not installed")
keras = pytest.importorskip("keras", minversion="3.10", reason="this TensorFlow has Keras 2")

import slurm_resolver as sr  # noqa: E402
from slurm_resolver.errors import ResumeError  # noqa: E402
from slurm_resolver.tf.training import checkpoint_owner  # noqa: E402

pytestmark = pytest.mark.tensorflow

ALONE: Dict[str, str] = {}
JOB = {"SLURM_JOB_ID": "41"}
NEXT_JOB = {"SLURM_JOB_ID": "52"}
VARIABLES = ("SLURM_JOB_ID", "SLURM_ARRAY_JOB_ID", "SLURM_ARRAY_TASK_ID")


def task(array: str, number: str) -> Dict[str, str]:
    own = str(int(array) + int(number))
    return {"SLURM_JOB_ID": own, "SLURM_ARRAY_JOB_ID": array, "SLURM_ARRAY_TASK_ID": number}


class Trainings:
    """Trainings in one folder, each of another job."""

    def __init__(self, folder: Path, patch: pytest.MonkeyPatch) -> None:
        self.folder = folder
        self.patch = patch

    def begin(self, job: Dict[str, str], **state: Any) -> Any:
        for name in VARIABLES:
            self.patch.delenv(name, raising=False)
        for name, value in job.items():
            self.patch.setenv(name, value)
        termination = sr.termination_config(None, requeue=None, signals=())
        state = state or {"x": tf.Variable(0.0)}
        return sr.ResumableLoop(str(self.folder), termination=termination, **state)

    def train(self, job: Dict[str, str], epochs: int, **state: Any) -> None:
        for _ in self.begin(job, **state).epochs(epochs):
            pass


@pytest.fixture
def trainings(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Trainings:
    return Trainings(tmp_path / "checkpoints", monkeypatch)


# who has saved, who comes next, and what is said of it
GOES_ON: Dict[str, Tuple[Dict[str, str], Dict[str, str], str]] = {
    "the same job": (JOB, JOB, "saved at epoch 1, step 0 by job 41"),
    "the next job": (JOB, NEXT_JOB, "saved at epoch 1, step 0 by job 41"),
    "the same task": (task("60", "3"), task("60", "3"), "by task 3 of job array 60"),
    "the same task of the next array": (
        task("60", "3"), task("70", "3"), "by task 3 of job array 60",
    ),
    "a job after a task": (task("60", "3"), NEXT_JOB, "by task 3 of job array 60"),
    "a task after a job": (JOB, task("60", "3"), "by job 41"),
    "without Slurm": (ALONE, ALONE, "saved at epoch 1, step 0"),
    "in a job after none": (ALONE, JOB, "saved at epoch 1, step 0"),
}  # fmt: skip


@pytest.mark.parametrize("case", GOES_ON)
def test_the_next_job_goes_on_and_says_from_whose(
    trainings: Trainings, case: str, caplog: pytest.LogCaptureFixture
) -> None:
    before, after, said = GOES_ON[case]
    trainings.train(before, 1)
    with caplog.at_level(logging.WARNING):
        trainings.train(after, 2)
        caplog.clear()
        trainings.train(after, 2)
    assert len(caplog.messages) == 1
    assert "nothing is left to train: " in caplog.text
    caplog.clear()
    trainings.train(after, 3)
    (line,) = [text for text in caplog.messages if "goes on" in text]
    assert line.startswith(f"training goes on from {trainings.folder}/ckpt-2, saved at epoch 2")
    assert said.replace("epoch 1", "epoch 2").rpartition(" by ")[0] in line


@pytest.mark.parametrize("saved", [True, False])
def test_another_task_of_an_array_is_refused(trainings: Trainings, saved: bool) -> None:
    """Also where the first one has not saved yet."""
    first = trainings.begin(task("60", "3"))
    if saved:
        for _ in first.epochs(1):
            pass
    expected = (
        f"the checkpoints in '{trainings.folder}' are those of task 3 of job array 60, and this is "
        f"task 4 of job array 60: .* such as {trainings.folder}/$SLURM_ARRAY_TASK_ID, or remove"
    )
    with pytest.raises(ResumeError, match=re.escape(expected).replace(r"\.\*", ".*")):
        trainings.begin(task("60", "4"))
    (trainings.folder / checkpoint_owner.FILE).unlink()
    if saved:  # the checkpoint knows it as well
        with pytest.raises(ResumeError, match=re.escape(expected).replace(r"\.\*", ".*")):
            trainings.begin(task("60", "4"))


def test_one_whose_folder_was_taken_over_saves_no_more(
    trainings: Trainings, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = trainings.begin(JOB)
    monkeypatch.setattr("os.getpid", lambda: 1)
    trainings.train(NEXT_JOB, 1)
    with pytest.raises(ResumeError, match=r"taken over by job 52 \(.*\), while job 41 is still"):
        list(first.epochs(1))


def test_a_file_that_says_nothing_keeps_nobody_out(trainings: Trainings) -> None:
    trainings.train(JOB, 1)
    for text in (b"", b"{", b"[]", b"null"):
        (trainings.folder / checkpoint_owner.FILE).write_bytes(text)
        trainings.train(JOB, 1)


def model(*units: int, kind: Any = None, built: bool = True) -> Dict[str, Any]:
    keras.utils.set_random_seed(3)
    layers = [keras.layers.Dense(count) for count in units]
    made = keras.Sequential([keras.Input((4,)), *layers] if built else layers)
    optimizer = (kind or keras.optimizers.Adam)(0.01)
    if built:
        optimizer.build(made.trainable_variables)
    return {"model": made, "optimizer": optimizer}


def variables(dtype: str, *shape: int) -> Dict[str, Any]:
    return {"x": tf.Variable(tf.zeros(shape, dtype))}


Make = Callable[[], Dict[str, Any]]
# what was saved, what comes next, and what is said of it; nothing where that goes on
MODELS: Dict[str, Tuple[Make, Make, str]] = {
    "the same": (lambda: model(4, 4), lambda: model(4, 4), ""),
    "a wider layer": (
        lambda: model(8, 1), lambda: model(16, 1),
        r"is float32 of shape \(4, 8\) there, and .* \(4, 16\)",
    ),
    "one layer more": (lambda: model(4), lambda: model(4, 4), "it has no .*/"),
    "one layer less": (
        lambda: model(4, 4), lambda: model(4), "it has .*/.*, which is not here",
    ),
    "another optimizer": (
        lambda: model(4), lambda: model(4, kind=keras.optimizers.SGD),
        "it has optimizer/.*, which is not here",
    ),
    "not yet built": (lambda: model(4, 4), lambda: model(4, 4, built=False), ""),
    "another shape": (
        lambda: variables("float32", 2), lambda: variables("float32", 3),
        r"x is float32 of shape \(2,\) there, and float32 of shape \(3,\) here",
    ),
    "another type": (
        lambda: variables("float32", 2), lambda: variables("float64", 2),
        r"x is float32 of shape \(2,\) there, and float64 of shape \(2,\) here",
    ),
    "something more": (
        lambda: variables("float32", 2),
        lambda: {**variables("float32", 2), "y": tf.Variable(1)}, "",
    ),
    "something less": (
        lambda: {**variables("float32", 2), "y": tf.Variable(1)},
        lambda: variables("float32", 2), "",
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", MODELS)
def test_another_model_is_refused(trainings: Trainings, case: str) -> None:
    first, second, said = MODELS[case]
    trainings.train(JOB, 1, **first())
    if not said:
        trainings.train(NEXT_JOB, 2, **second())
        return
    expected = rf"ckpt-1, saved by job 41, is that of another model: .*{said}.*Give each training"
    with pytest.raises(ResumeError, match=expected):
        trainings.train(NEXT_JOB, 2, **second())
    trainings.train(JOB, 2, **first())  # whose folder it still is


def layers(*made: Any, kind: str = "Adam") -> Dict[str, Any]:
    model = keras.Sequential([keras.Input((4,)), *made])
    optimizer = getattr(keras.optimizers, kind)(0.01)
    optimizer.build(model.trainable_variables)
    return {"model": model, "optimizer": optimizer}


def seeded(seed: int, **state: Any) -> Dict[str, Any]:
    keras.utils.set_random_seed(seed)
    return state or layers(keras.layers.Dense(4))


# of variables of the same shapes: what was saved, what comes next, and what is said of it
TRAININGS: Dict[str, Tuple[Make, Make, str]] = {
    "another activation": (
        lambda: layers(keras.layers.Dense(4, "relu")),
        lambda: layers(keras.layers.Dense(4, "tanh")),
        "layer 0 of model is Dense with activation relu there, and Dense with activation tanh here",
    ),
    "another optimizer": (
        lambda: layers(keras.layers.Dense(4)), lambda: layers(keras.layers.Dense(4), kind="AdamW"),
        "the optimizer is Adam there, and AdamW here. Give each training a folder of its own",
    ),
    "another seed": (
        lambda: seeded(3), lambda: seeded(4),
        "its seed is 3, and that of this one is 4 (keras.utils.set_random_seed, tf.random",
    ),
    "the same seed": (lambda: seeded(3), lambda: seeded(3), ""),
    "other dropout": (
        lambda: layers(keras.layers.Dense(4), keras.layers.Dropout(0.1, seed=1)),
        lambda: layers(keras.layers.Dense(4), keras.layers.Dropout(0.2, seed=1)), "",
    ),
    "another name": (
        lambda: layers(keras.layers.Dense(4, name="a")),
        lambda: layers(keras.layers.Dense(4, name="b")), "",
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", TRAININGS)
def test_another_training_of_the_same_shapes_is_refused(
    trainings: Trainings, case: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, second, said = TRAININGS[case]
    trainings.train(JOB, 1, **first())
    monkeypatch.setattr("os.getpid", lambda: 1)
    if not said:
        trainings.train(NEXT_JOB, 2, **second())
        return
    expected = f"ckpt-1, saved by job 41, is that of another training: {said}"
    with pytest.raises(ResumeError, match=re.escape(expected)):
        trainings.train(NEXT_JOB, 2, **second())
    trainings.train(JOB, 2, **first())  # whose folder it still is


@pytest.mark.parametrize("again", ["SLURM_RESTART_COUNT", "SLURM_RESOLVER_STEP_RESTART"])
def test_a_job_that_was_started_again_may_have_drawn_another_seed(
    trainings: Trainings, again: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    trainings.train(JOB, 1, **seeded(3))
    monkeypatch.setattr("os.getpid", lambda: 1)
    monkeypatch.setenv(again, "1")
    with pytest.raises(ResumeError, match="its seed is 3, and that of this one is 4"):
        trainings.train(NEXT_JOB, 2, **seeded(4))
    trainings.train(JOB, 2, **seeded(4))


def test_a_process_may_set_other_seeds_on_its_way(trainings: Trainings) -> None:
    trainings.train(JOB, 1, **seeded(3))
    trainings.train(JOB, 2, **seeded(4))


def test_a_model_after_its_first_step_is_the_same(trainings: Trainings) -> None:
    """By then it has what its program does not have at its beginning."""
    made = model(4, built=False)
    loop = trainings.begin(JOB, **made)
    for _ in loop.epochs(1):
        made["model"](tf.zeros([1, 4]))
        made["optimizer"].build(made["model"].trainable_variables)
    assert trainings.begin(JOB, **model(4, built=False)).epoch == 1
    assert trainings.begin(JOB, **model(4)).epoch == 1


def test_checkpoints_of_older_versions_go_on(trainings: Trainings) -> None:
    """They know no owner; what does not fit into their variables is still an error."""
    counters = {
        name: tf.Variable(value, dtype=tf.int64)
        for name, value in {"epoch": 1, "step": 0, "drawn": 0}.items()
    }
    old = tf.train.Checkpoint(slurm_resolver=tf.train.Checkpoint(**counters), x=tf.Variable([7.0]))
    tf.train.CheckpointManager(old, str(trainings.folder), 2).save()
    x = tf.Variable([0.0])
    loop = trainings.begin(JOB, x=x, y=tf.Variable(1.0))
    assert (loop.epoch, float(x[0])) == (1, 7.0)
    with pytest.raises(ResumeError, match=r"ckpt-1 is that of another model: x is float32"):
        trainings.begin(JOB, x=tf.Variable([0.0, 1.0]))
