"""A training resumes with another number of workers by its count of samples."""

from __future__ import annotations

import contextlib
from collections import defaultdict
from pathlib import Path
from typing import Any

import pytest
import tensorflow as tf
from folders import helper
from keras_3 import keras
from kinds import Fields
from labelled_rows import BrokenOffError
from local_run import captured, in_step

import slurm_resolver as sr

SAMPLES = 100
EPOCHS = 2
STEPS = 3  # in each start except the last
SAY = (
    "a global batch has {} samples now, and had {} in the checkpoint: "
    "training resumes after step {} of epoch {}; {}"
)
# The samples of a global batch in each start, and the messages of later starts. 36 samples make 4
# batches of 8, and 4 remain. 3 steps later, 56 make 14 batches of 4. Then 68 make 8 of 8 plus 4.
SIZES = (
    12,
    8,
    4,
    8,
)
SAID = [
    SAY.format(8, 12, 4, 1, "samples trained on again: 4"),
    SAY.format(4, 8, 14, 1, "samples trained on again: 0"),
    SAY.format(8, 4, 8, 1, "samples trained on again: 4"),
]


class Story:
    """Records the samples of a training by epoch until it is interrupted."""

    def __init__(self) -> None:
        self.seen: dict[int, list[int]] = defaultdict(list)
        self.epoch = self.left = 0
        self.options: Fields = {
            "termination": sr.termination_config(None, signals=()),
            "save_every": STEPS,
        }

    def begin_step(self) -> None:
        if self.left == 0:
            raise BrokenOffError
        self.left -= 1

    def take(self, values: Any) -> None:
        self.seen[self.epoch] += [int(value) for value in values]


def train_loop(folder: str, size: int, story: Story) -> None:
    loop = sr.ResumableLoop(
        folder,
        x=tf.Variable(0.0),
        **story.options,
    )
    data = tf.data.Dataset.range(SAMPLES).shuffle(SAMPLES, seed=1).batch(size)
    for story.epoch in loop.epochs(EPOCHS):
        for batch in loop.batches(data):
            story.begin_step()
            story.take(batch.numpy())


def fit(folder: str, story: Story, **data: Any) -> None:
    class Taking(keras.layers.Layer):  # type: ignore[misc]
        def call(self, rows: Any) -> Any:
            if tf.executing_eagerly():  # otherwise Keras builds the model
                story.take(rows.numpy()[:, 0])
            return rows

    class Tell(keras.callbacks.Callback):  # type: ignore[misc]
        def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
            story.epoch = epoch

        def on_train_batch_begin(self, batch: int, logs: Any = None) -> None:
            story.begin_step()

    keras.utils.set_random_seed(3)
    model = keras.Sequential([keras.Input((1,)), Taking(), keras.layers.Dense(1)])
    model.compile(keras.optimizers.SGD(1e-5), "mse", run_eagerly=True)
    model.fit(
        **data,
        epochs=EPOCHS,
        callbacks=[Tell(), sr.BackupAndResume(folder, **story.options)],
        verbose=0,
    )


ROWS = tf.reshape(tf.range(SAMPLES, dtype="float32"), [-1, 1])


def train_on_arrays(folder: str, size: int, story: Story) -> None:
    fit(
        folder,
        story,
        x=ROWS.numpy(),
        y=ROWS.numpy(),
        batch_size=size,
    )


def train_on_dataset(folder: str, size: int, story: Story) -> None:
    fit(
        folder,
        story,
        x=tf.data.Dataset.from_tensor_slices((ROWS, ROWS)).shuffle(SAMPLES, seed=1).batch(size),
        shuffle=False,
    )


@pytest.mark.parametrize(
    "train",
    [train_loop, train_on_dataset, pytest.param(train_on_arrays, marks=pytest.mark.nightly)],
)
def test_with_batches_of_another_size_it_resumes_at_the_last_whole_batch(
    tmp_path: Path, train: Any, caplog: pytest.LogCaptureFixture
) -> None:
    keras.utils.set_random_seed(3)  # as `fit` does later, for the same order of the data
    story = Story()
    for size in SIZES[:-1]:
        story.left = STEPS
        with pytest.raises(BrokenOffError):
            train(str(tmp_path), size, story)
    story.left = 99
    train(str(tmp_path), SIZES[-1], story)
    assert set(story.seen[0]) == set(range(SAMPLES))
    assert len(story.seen[0]) == SAMPLES + 8
    assert sorted(story.seen[1]) == list(range(SAMPLES))
    assert [text for text in caplog.messages if "global batch" in text] == SAID


def test_earlier_epochs_had_the_steps_of_the_former_size(tmp_path: Path) -> None:
    """An iterator over all epochs, each of 32 samples: 4 batches of 8, then 8 of 4."""
    story = Story()
    for size, story.left in ((8, 6), (4, 99)):
        data = tf.data.Dataset.from_tensor_slices((ROWS, ROWS)).batch(size)
        with contextlib.suppress(BrokenOffError):
            fit(
                str(tmp_path),
                story,
                x=data,
                shuffle=False,
                steps_per_epoch=32 // size,
            )
    assert story.seen[0] + story.seen[1] == list(range(64))


def test_a_loop_takes_data_that_does_not_know_its_batch_size(tmp_path: Path) -> None:
    class Loader(list):  # type: ignore[type-arg]
        _batch_size = None

    loop = sr.ResumableLoop(str(tmp_path), **Story().options)
    assert [*loop.batches(Loader([1, 2]))] == [1, 2]


def test_it_resumes_before_a_whole_call_of_keras_with_several_steps(tmp_path: Path) -> None:
    """With steps_per_execution=3: 3 steps of 12 samples are 4 of 8, the first 3 in one call."""
    loop = sr.ResumableLoop(str(tmp_path), **Story().options)
    loop.begin_data(12)
    loop.after_steps(3)
    assert loop.begin_data(8, 3) == 12
    assert loop.step == 3


def test_two_workers_that_are_preempted_resume_as_three(tmp_path: Path) -> None:
    """The preemption comes during a validation. 80 samples make 6 batches of 12, and 8 remain."""
    program = [*helper("slurm_train.py"), "keras", str(tmp_path)]
    program += ["--per-epoch=1", "--batch-of-each=4"]
    for workers, status, more in (
        (2, 75, ['--faults=[[0, 20, "SIGTERM in validation"]]', "--sleep=0.4"]),
        (3, 0, []),
    ):
        done = captured(in_step(f"-n {workers}", *program, *more), status)
        assert "retracing" not in done.stderr  # TensorFlow would warn at every save
    assert (
        done.stderr.count(
            f"training resumes from {tmp_path}/checkpoints/ckpt-1, saved at step 10 of epoch 2"
        )
        == 1
    )
    assert done.stderr.count(SAY.format(12, 8, 6, 2, "samples trained on again: 8")) == 1
