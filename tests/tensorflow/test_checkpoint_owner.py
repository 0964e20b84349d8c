"""Whose checkpoints a folder keeps, and who may go on from them."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any, Callable, Dict, Tuple

import pytest

tf = pytest.importorskip("tensorflow", reason="TensorFlow is not installed")
keras = pytest.importorskip("keras", minversion="3.10", reason="this TensorFlow has Keras 2")

import slurm_resolver as sr  # noqa: E402
from slurm_resolver.errors import ResumeError  # noqa: E402
from slurm_resolver.tf.training import checkpoint_owner  # noqa: E402

pytestmark = pytest.mark.tensorflow

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


# who has saved, and who comes next
GOES_ON: Dict[str, Tuple[Dict[str, str], Dict[str, str]]] = {
    "the next job": (JOB, NEXT_JOB),
    "the same task of the next array": (task("60", "3"), task("70", "3")),
    "a job after a task": (task("60", "3"), NEXT_JOB),
    "a task after a job": (JOB, task("60", "3")),
    "without Slurm": ({}, {}),
}


@pytest.mark.parametrize("case", GOES_ON)
def test_the_next_job_goes_on(
    trainings: Trainings, case: str, caplog: pytest.LogCaptureFixture
) -> None:
    before, after = GOES_ON[case]
    trainings.train(before, 1)
    with caplog.at_level(logging.WARNING):
        trainings.train(after, 2)
        trainings.train(after, 2)
    going_on, ended = caplog.messages
    expected = f"training resumes from {trainings.folder}/ckpt-1, saved after epoch 1"
    assert going_on == expected
    assert ended.startswith(f"nothing is left to train: {trainings.folder}/ckpt-2 was saved after")


def test_a_restart_that_finds_no_checkpoint_says_so(
    trainings: Trainings, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("SLURM_RESTART_COUNT", "1")
    trainings.train(JOB, 1)
    assert (
        f"training starts from the beginning: '{trainings.folder}' holds no checkpoint"
        in caplog.text
    )


@pytest.mark.parametrize("saved", [True, False])
def test_another_task_of_an_array_is_refused(trainings: Trainings, saved: bool) -> None:
    """Also if the first one has not saved yet."""
    first = trainings.begin(task("60", "3"))
    if saved:
        list(first.epochs(1))
    expected = (
        "are those of task 3 of job array 60, .* and this is task 4 of job array 60, "
        rf".* such as {trainings.folder}/\$SLURM_ARRAY_TASK_ID, or remove"
    )
    with pytest.raises(ResumeError, match=expected):
        trainings.begin(task("60", "4"))


def test_one_whose_folder_was_taken_over_saves_no_more(
    trainings: Trainings, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = trainings.begin(JOB)
    monkeypatch.setattr("os.getpid", lambda: 1)
    trainings.train(NEXT_JOB, 1)
    with pytest.raises(ResumeError, match=r"taken over by job 52, .*, while job 41, .* is still"):
        list(first.epochs(1))


def test_a_file_that_says_nothing_keeps_nobody_out(trainings: Trainings) -> None:
    trainings.train(JOB, 1)
    (trainings.folder / checkpoint_owner.FILE).write_bytes(b"")
    trainings.train(JOB, 1)


def model(*units: int, built: bool = True) -> Dict[str, Any]:
    layers = [keras.layers.Dense(count) for count in units]
    made = keras.Sequential([keras.Input((4,)), *layers] if built else layers)
    optimizer = keras.optimizers.Adam(0.01)
    if built:
        optimizer.build(made.trainable_variables)
    return {"model": made, "optimizer": optimizer}


def variables(dtype: str, *shape: int) -> Dict[str, Any]:
    return {"x": tf.Variable(tf.zeros(shape, dtype))}


Make = Callable[[], Dict[str, Any]]
# what was saved, what comes next, and what is said of it; nothing if that goes on
MODELS: Dict[str, Tuple[Make, Make, str]] = {
    "the same": (lambda: model(4, 4), lambda: model(4, 4), ""),
    "not yet built": (lambda: model(4, 4), lambda: model(4, 4, built=False), ""),
    "a wider layer": (lambda: model(8, 1), lambda: model(16, 1), r"\(4, 8\) .* shape \(4, 16\)"),
    "one layer more": (lambda: model(4), lambda: model(4, 4), "not bound to checkpointed values"),
    "another shape": (
        lambda: variables("float32", 2), lambda: variables("float32", 3), r"\(2,\) .*\(3,\)",
    ),
    "another type": (
        lambda: variables("float32", 2), lambda: variables("float64", 2),
        "expected dtype double does not equal original dtype float",
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", MODELS)
def test_another_model_is_refused(trainings: Trainings, case: str) -> None:
    first, second, said = MODELS[case]
    trainings.train(JOB, 1, **first())
    if not said:
        trainings.train(NEXT_JOB, 2, **second())
        return
    expected = rf"ckpt-1 is that of another model: .*{said}.*Give each training"
    with pytest.raises(ResumeError, match=expected):
        trainings.train(NEXT_JOB, 2, **second())
    trainings.train(JOB, 2, **first())  # whose folder it still is


@pytest.mark.parametrize("change", [{"units": (4,)}, {"optimizer": "sgd"}])
def test_fit_refuses_a_checkpoint_that_holds_more(tmp_path: Path, change: Dict[str, Any]) -> None:
    """Such as that of a model with a further layer, or with another optimizer."""

    def fit(units: Tuple[int, ...] = (4, 4), optimizer: str = "adam") -> None:
        made = model(*units)["model"]
        made.compile(optimizer, "mse")
        termination = sr.termination_config(None, requeue=None, signals=())
        backup = sr.BackupAndResume(str(tmp_path), termination)
        made.fit(tf.zeros([4, 4]), tf.zeros([4, 4]), verbose=0, callbacks=[backup])

    fit()
    fit()
    with pytest.raises(ResumeError, match="ckpt-1 is that of another model: Unresolved object"):
        fit(**change)


def test_a_model_after_its_first_step_is_the_same(trainings: Trainings) -> None:
    """By then it has variables that its program does not have at its beginning."""
    made = model(4, built=False)
    loop = trainings.begin(JOB, **made)
    for _ in loop.epochs(1):
        made["model"](tf.zeros([1, 4]))
        made["optimizer"].build(made["model"].trainable_variables)
    assert trainings.begin(JOB, **model(4, built=False)).epoch == 1
    assert trainings.begin(JOB, **model(4)).epoch == 1
