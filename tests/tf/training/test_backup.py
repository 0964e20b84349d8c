"""A resumed training equals an uninterrupted one, or its first start says that it will not."""

from __future__ import annotations

import contextlib
import json
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from folders import helper, quiet_helper
from keras_3 import keras
from keras_marks import KERAS_3
from kinds import Fields, Strings
from labelled_rows import BrokenOffError
from local_run import captured, in_step

import slurm_resolver as sr
from slurm_resolver.tf.training import backup

pytestmark = KERAS_3

WARNING = "it will not resume exactly: "


def compare(*arguments: str) -> Fields:
    """Returns the outcomes of programs, which were interrupted after some steps."""
    done = captured([*quiet_helper("resume_programs.py"), "compare", *arguments], status=0)
    return {
        name: outcomes
        for line in done.stdout.splitlines()
        for name, outcomes in json.loads(line).items()
    }


def train(workers: int, *arguments: str) -> tuple[Any, str]:
    """Trains programs in a local step; returns what worker 0 prints, and what it logs."""
    program = [*helper("resume_programs.py"), "train", *arguments]
    done = captured(in_step(f"-n {workers} --requeue", *program), status=0)
    printed = next(line[3:] for line in done.stdout.splitlines() if line.startswith("0: ["))
    return json.loads(printed), done.stderr


def test_state_of_data_and_callbacks_is_restored_or_told() -> None:
    results = compare(
        "unknown_length",
        "py_dataset",
        "callback_with_dataclass",
        "step_of_its_own",
        "evaluation_after_the_last_step",
        "drawn_rates",
        "optimizers_in_a_list",
        "tf_random_in_call",
        "optimizer_that_is_not_built",
        "generator_of_the_model_in_map",
        "weight_in_map",
        "metric_of_several_numbers",
        "--steps",
        "13",
        "16",  # the last one of an epoch
    )
    for name in (
        "generator_of_the_model_in_map",
        "optimizer_that_is_not_built",
        "tf_random_in_call",
        "weight_in_map",
    ):
        assert results.pop(name) == ["told", "told"]
    assert {outcome for outcomes in results.values() for outcome in outcomes} == {"equal"}, results


@pytest.mark.nightly
def test_under_tensorflows_strategy_programs_resume() -> None:
    results = compare("endless", "dropout_and_normalization", "--mirrored", "--steps", "3", "11")
    assert {outcome for outcomes in results.values() for outcome in outcomes} == {"equal"}, results


@pytest.mark.nightly
def test_no_program_is_silently_different() -> None:
    """Each is interrupted in its first, third and last epoch."""
    results = compare("--steps", "3", "11", "15")
    counts = Counter(outcome for outcomes in results.values() for outcome in outcomes)
    print(dict(counts))
    assert {*counts} == {"equal", "told"}, results
    programs = {name for name, outcomes in results.items() if "told" in outcomes}
    assert programs == {
        "callback_with_closure",
        "callback_with_iterator",
        "callback_with_list_of_objects",
        "csv_logger",
        "generator_of_the_model_in_map",
        "optimizer_that_is_not_built",
        "random_generator_in_call",
        "tf_random_in_call",
        "weight_in_map",
    }


@pytest.mark.nightly
@pytest.mark.parametrize("workers", [1, 2])
@pytest.mark.parametrize(
    "programs",
    [
        ["files_then_records"],
        ["counting_generator"],
        ["cached_validation"],
        ["drawn_rates"],
        ["scaled_optimizer"],  # which is created outside the scope
        ["callback_with_dataclass"],
        ["shuffled_and_cached", "py_dataset", "callback_with_dataclass"],
    ],
)
def test_after_a_signal_each_fit_of_a_program_equals_an_uninterrupted_one(
    tmp_path: Path, workers: int, programs: Strings
) -> None:
    """Of three fits with one folder, the second is interrupted, and the first is not repeated."""
    whole, _ = train(workers, *programs)
    step = 5 if len(programs) == 1 else 20
    resumed, log = train(workers, *programs, f"--folder={tmp_path}", f"--steps={step}")
    assert "training resumes from" in log
    assert log.count("nothing is left to train") == len(programs) // 2
    assert WARNING not in log
    assert resumed == whole


def test_a_finished_training_is_not_told_what_it_could_not_resume(tmp_path: Path) -> None:
    program = ["optimizer_that_is_not_built", f"--folder={tmp_path}", "--steps=99"]
    logs = [train(1, *program)[1] for _ in range(2)]
    assert [log.count(WARNING) for log in logs] == [1, 0], logs


class CountedEpochs(keras.utils.PyDataset):  # type: ignore[misc]
    """Four batches, and how many epochs have ended."""

    ended = 0

    def __len__(self) -> int:
        return 4

    def __getitem__(self, index: int) -> Any:
        return np.ones([2, 1]), np.ones([2, 1])

    def on_epoch_end(self) -> None:
        self.ended += 1


class StopsWithinEpoch(keras.callbacks.Callback):  # type: ignore[misc]
    """Draws in each step, and ends the training in the second epoch."""

    def __init__(self, stop: int, breaks_off: bool) -> None:
        super().__init__()
        self.stop = stop
        self.breaks_off = breaks_off
        self.steps = 0

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        np.random.random()
        self.steps += 1
        self.model.stop_training = self.steps == self.stop

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        if self.breaks_off and self.model.stop_training:
            raise BrokenOffError


@pytest.mark.parametrize("stop", [6, 8])  # of 4 steps in each epoch
@pytest.mark.parametrize("breaks_off", [True, False])
def test_after_a_fit_that_was_stopped_within_an_epoch_the_next_one_is_the_same(
    tmp_path: Path, stop: int, breaks_off: bool
) -> None:
    """The data and the random numbers are those of the next fit."""

    def train(folder: str, breaks_off: bool = False) -> Any:
        backup._finished.clear()  # as in the program's next start
        keras.utils.set_random_seed(1)
        model = keras.Sequential([keras.Input((1,)), keras.layers.Dense(1)])
        model.compile("sgd", "mse")
        data = CountedEpochs()
        termination = sr.termination_config(None, signals=())
        callbacks = [
            StopsWithinEpoch(stop, breaks_off),
            sr.BackupAndResume(folder, termination, save_every=1),
        ]
        model.fit(data, epochs=3, verbose=0, callbacks=callbacks)
        return data.ended, np.random.random()

    whole = train(str(tmp_path / "whole"))
    if breaks_off:
        with pytest.raises(BrokenOffError):
            train(str(tmp_path / "again"), breaks_off)
    else:
        train(str(tmp_path / "again"))
    assert train(str(tmp_path / "again")) == whole


class BreaksOff(keras.callbacks.Callback):  # type: ignore[misc]
    def __init__(self, left: int) -> None:
        super().__init__()
        self.left = left

    def on_train_batch_begin(self, batch: int, logs: Any = None) -> None:
        if self.left == 0:
            raise BrokenOffError
        self.left -= 1


def test_a_fit_that_failed_leaves_its_epoch_to_no_other_fit(tmp_path: Path) -> None:
    model = keras.Sequential([keras.Input((1,)), keras.layers.Dense(1)])
    model.compile("sgd", "mse")

    def fail(steps: int) -> None:
        termination = sr.termination_config(None, signals=())
        callbacks = [
            BreaksOff(steps),
            sr.BackupAndResume(str(tmp_path), termination, save_every=1),
        ]
        with pytest.raises(BrokenOffError):
            model.fit(CountedEpochs(), epochs=3, verbose=0, callbacks=callbacks)

    for _ in range(2):
        fail(6)
    assert model.fit(CountedEpochs(), epochs=2, verbose=0).epoch == [0, 1]


def test_metrics_that_have_changed_start_from_zero(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """The loss is that of the second of two steps."""
    termination = sr.termination_config(None, signals=())
    for average, others in (("micro", [BreaksOff(1)]), (None, [])):
        metric = keras.metrics.F1Score(average, threshold=0.5)
        model = keras.Sequential([keras.Input((2,)), keras.layers.Dense(2, use_bias=False)])
        model.compile("sgd", "mse", metrics=[metric])
        callback = sr.BackupAndResume(str(tmp_path), termination, save_every=1)
        with contextlib.suppress(BrokenOffError):
            history = model.fit(
                np.zeros([2, 2]),
                np.array([[1.0, 1.0], [2.0, 2.0]]),
                batch_size=1,
                shuffle=False,
                verbose=0,
                callbacks=[*others, callback],
            )
    assert history.history["loss"] == [4.0]
    assert "the metrics of this epoch start from zero: the model now has different" in caplog.text


def test_the_error_of_a_model_that_cannot_be_built_says_why(tmp_path: Path) -> None:
    class Broken(keras.Model):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self.dense = keras.layers.Dense(1)

        def call(self, rows: Any) -> Any:
            return self.dense(rows, self.missing)

    model = Broken()
    model.compile("sgd", "mse")
    with pytest.raises(
        sr.ResumeError,
        match=r"is not built, .*no attribute 'missing'.*: start it with keras\.Input",
    ):
        model.fit(CountedEpochs(), verbose=0, callbacks=[sr.BackupAndResume(str(tmp_path))])
