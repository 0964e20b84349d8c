"""What a replica computes of its own rows, and what it computes with the others."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from folders import quiet_helper
from keras_marks import KERAS_3, VERSION
from told_by_workers import lines_told, run, told

pytestmark = KERAS_3

# The gradient by the predictions is divided by the number of rows that a worker has.
OUTPUT_GRADIENTS = """
import keras, numpy as np, tensorflow as tf, slurm_resolver as sr
class Own(keras.Model):
    def train_step(self, batch):
        with tf.GradientTape() as tape:
            found = self(batch[0])
        by_found = tf.ones_like(found) / tf.cast(tf.shape(found)[0], tf.float32)
        gradients = tape.gradient(found, self.trainable_variables, output_gradients=by_found)
        self.optimizer.apply(gradients, self.trainable_variables)
        return {}
with sr.MultiWorkerMirroredStrategy().scope():
    inputs = keras.Input((1,))
    model = Own(inputs, keras.layers.Dense(1, kernel_initializer="ones")(inputs))
    model.compile(keras.optimizers.SGD(0.5))
model.fit(np.ones((8, 1)), np.ones(8), batch_size=8, verbose=0)
print("told", model.get_weights()[0].tolist())
"""


def test_output_gradients_are_those_of_the_whole_batch(tmp_path: Path) -> None:
    assert told(OUTPUT_GRADIENTS, tmp_path) == ["told [[0.5]]"] * 2


# The rows are divided before the map, and each is compared with the others of its batch.
WORDS = """
import keras, tensorflow as tf, slurm_resolver as sr
strategy = sr.MultiWorkerMirroredStrategy()
with strategy.scope():
    words = keras.Input((1,), dtype="string")
    found = keras.layers.StringLookup(vocabulary=["a", "b"], output_mode="one_hot")(words)
    model = keras.Model(words, found - keras.ops.max(found, axis=0, keepdims=True))
data = tf.data.Dataset.from_tensor_slices([["a"], ["b"], ["b"]]).map(lambda word: word).batch(2)
print("told", model.predict(data, verbose=0).tolist())
"""


def test_words_are_compared_though_tensorflow_does_not_send_them(tmp_path: Path) -> None:
    rows = [[0, 0, -1], [0, -1, 0], [0, 0, 0]]
    assert told(WORDS, tmp_path) == [f"told {rows}"] * 2


def test_a_step_takes_few_round_trips_between_the_workers(tmp_path: Path) -> None:
    """The workers are compared in the first one. A synchronized layer takes two of its own."""
    done = run(quiet_helper("keras_collectives.py"), tmp_path)
    assert lines_told(done) == ["told convolutions 1", "told synchronized 3"]


# The workers compute the whole step, and one of them rounds otherwise, as GPUs do.
ROUNDING = """
import keras, tensorflow as tf, slurm_resolver as sr
from slurm_resolver.tf.keras import replica_step
replica_step.unordered_devices = lambda: True
strategy = sr.MultiWorkerMirroredStrategy()
off = 1.0 + strategy.cluster_resolver.task_id
class Own(keras.Model):
    def train_step(self, batch):
        self.optimizer.apply([off * tf.ones((1, 1))], self.trainable_variables)
        return {"sum": off * tf.reduce_sum(batch.flat_values)}
with strategy.scope():
    inputs = keras.Input((1,))
    model = Own(inputs, keras.layers.Dense(1, use_bias=False, kernel_initializer="zeros")(inputs))
    model.compile(keras.optimizers.SGD(0.5, momentum=0.5))
rows = tf.ragged.constant([[1.0], [2.0, 3.0]] * 2)
history = model.fit(tf.data.Dataset.from_tensor_slices(rows).ragged_batch(2), verbose=0).history
momentum = [value.numpy().tolist() for value in model.optimizer.variables[2:]]
print("told", history["sum"], model.get_weights()[0].tolist(), momentum)
"""


def test_workers_that_compute_whole_steps_on_gpus_take_what_the_first_one_has(
    tmp_path: Path,
) -> None:
    assert told(ROUNDING, tmp_path) == ["told [6.0] [[-1.25]] [[[-0.75]]]"] * 2


# Each worker has other rows, 6 and 5 of them. A step of SGD is linear in the gradient, so that the
# weights of both are the mean of what each of them would have alone.
NORMALIZING = """
import keras, numpy as np, slurm_resolver as sr, tensorflow as tf
def make():
    inputs = keras.Input((4,))
    hidden = keras.layers.Dense(8)(inputs)
    for _ in range(2):
        hidden = keras.layers.BatchNormalization(momentum=0.5)(hidden)
        hidden = keras.layers.Dense(8, "tanh")(hidden)
    model = keras.Model(inputs, keras.layers.Dense(1)(hidden))
    model.compile(keras.optimizers.SGD(0.1), "mse")
    return model
strategy = sr.MultiWorkerMirroredStrategy()
keras.utils.set_random_seed(1)  # with one seed in fifty, rounding alone reaches 1e-5
with strategy.scope():
    model = make()
with tf.distribute.OneDeviceStrategy("/cpu:0").scope():
    alone = make()
alone.set_weights(model.get_weights())
x = np.random.default_rng(1).normal(2, 3, (11, 4))
model.fit(x, x[:, :1], batch_size=11, epochs=3, shuffle=False, verbose=0)
for _ in range(3):
    before = alone.get_weights()
    after = []
    for part in (x[::2], x[1::2]):
        alone.set_weights(before)
        alone.train_on_batch(part, part[:, :1])
        after.append([len(part) / 11 * one for one in alone.get_weights()])
    alone.set_weights([one + other for one, other in zip(*after)])
far = [np.abs(one - other).max() for one, other in zip(model.get_weights(), alone.get_weights())]
print("told", max(far) < 1e-5, max(far))
"""


def test_batch_normalization_takes_the_statistics_of_each_workers_rows(tmp_path: Path) -> None:
    for line in told(NORMALIZING, tmp_path):
        assert line.startswith("told True"), line


# A step that draws numbers by TensorFlow's seed, on batches of these sizes.
DRAWING = """
import keras, tensorflow as tf, slurm_resolver as sr
strategy = sr.MultiWorkerMirroredStrategy()
class Own(keras.Model):
    def train_step(self, batch):
        return {"loss": tf.reduce_mean(batch[0] + %s(tf.shape(batch[0])))}
generator = keras.random.SeedGenerator(1)
keras.utils.set_random_seed(3)
with strategy.scope():
    inputs = keras.Input((1,))
    model = Own(inputs, inputs)
    model.compile("sgd")
for rows in %s:
    model.train_on_batch(tf.ones((rows, 1)), tf.ones((rows, 1)))
"""
DRAWN = "(lambda shape: keras.random.normal(shape, seed=generator))"


@pytest.mark.parametrize(
    ("draw", "sizes", "warns"),
    [
        ("tf.random.normal", [4, 4, 3, 4], True),
        ("tf.random.normal", [4, 4], False),
        (DRAWN, [4, 3], False),
    ],
)
def test_other_random_numbers_for_a_batch_of_another_size_are_told(
    draw: str, sizes: list[int], warns: bool, tmp_path: Path
) -> None:
    done = run([sys.executable, "-W", "ignore", "-c", DRAWING % (draw, sizes)], tmp_path, 1)
    assert done.stderr.count("draws other random numbers than in one process") == warns


# The first batch has tensors with equal numbers of rows, and the next one has not.
ALONE = """
import keras, numpy as np, tensorflow as tf, slurm_resolver as sr
strategy = %s
keras.utils.set_random_seed(3)
class Own(keras.Model):
    def train_step(self, batch):
        noise = tf.random.normal([])
        return {"noise": noise}
with strategy.scope():
    inputs = keras.Input((1,))
    model = Own(inputs, keras.layers.Dense(1)(inputs))
    model.compile(keras.optimizers.SGD(0.5), jit_compile=False)
class Data(keras.utils.PyDataset):
    def __len__(self):
        return 3
    def __getitem__(self, number):
        return np.ones((4, 1)), np.ones((4 - number, 1))
class Tell(keras.callbacks.Callback):
    def on_train_batch_end(self, batch, logs):
        print("told", batch, float(logs["noise"]))
model.fit(Data(), verbose=0, shuffle=False, callbacks=[Tell()])
"""


@pytest.mark.skipif(
    VERSION.startswith("3.16."),
    reason="begins the sequences again for another number of rows, in one process",
)
def test_a_worker_alone_draws_what_keras_draws_for_batches_with_unequal_rows(
    tmp_path: Path,
) -> None:
    """It begins no second graph, which would begin the random sequences again."""
    alone = told(ALONE % "sr.MultiWorkerMirroredStrategy()", tmp_path, 1)
    assert alone == told(ALONE % "tf.distribute.get_strategy()", tmp_path, 1)
    assert len(alone) == 3
