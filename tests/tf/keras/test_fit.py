"""Keras 3 gives the same results in two workers as in one process.

KERAS_PROGRAMS selects programs of tests/helpers/keras_programs, for example "loss_*".
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest
from folders import quiet_helper
from keras_marks import KERAS_3
from keras_outcomes import (
    PROGRAM,
    SECONDS,
    Outcomes,
    assert_the_very_same,
    assert_whole_batches,
    different,
    outcomes,
    run_alone,
    selected,
)
from kinds import Strings
from local_run import captured, in_step

pytestmark = KERAS_3


def run(command: Strings, folder: Path, workers: int = 2) -> str:
    """Runs a command in workers on CPUs in a folder, and returns what they print."""
    return captured(
        in_step(f"-n {workers} --no-label", *command),
        status=0,
        cwd=folder,
        env={
            **os.environ,
            "TASK_OUTPUT": str(folder),
            "CUDA_VISIBLE_DEVICES": "",
        },
        timeout=SECONDS,
    ).stdout


@pytest.fixture(scope="module")
def alone(tmp_path_factory: pytest.TempPathFactory) -> Outcomes:
    return run_alone(tmp_path_factory.mktemp("alone"), selected(["*"]))


@pytest.fixture(scope="module")
def workers(tmp_path_factory: pytest.TempPathFactory) -> list[Outcomes]:
    """What came of all programs, by worker."""
    folder = tmp_path_factory.mktemp("workers")
    run([*PROGRAM, *selected(["*"])], folder)
    return outcomes(folder, ["0", "1"])


def test_programs_give_what_one_process_gives(alone: Outcomes, workers: list[Outcomes]) -> None:
    assert different(workers[0], alone) == {}


def test_only_what_cannot_be_split_is_computed_whole(workers: list[Outcomes]) -> None:
    assert_whole_batches(workers)


def test_all_workers_end_with_the_very_same(workers: list[Outcomes]) -> None:
    assert_the_very_same(workers)


# Without a seed, the strategy makes all workers shuffle alike, but draw different masks.
UNSEEDED = """
import keras, numpy as np, tensorflow as tf, slurm_resolver as sr
strategy = sr.MultiWorkerMirroredStrategy()
order = [int(row) for row in tf.data.Dataset.range(50).shuffle(50)] + list(np.random.permutation(9))
class Masks(keras.Model):
    def train_step(self, data):
        return {"masks": tf.linalg.matvec(self(data[0], training=True), tf.range(40.0))}
with strategy.scope():
    inputs = keras.Input((40,))
    model = Masks(inputs, keras.layers.Dropout(0.5)(inputs))
    model.compile()
masks = model.train_on_batch(np.ones((2, 40)), np.ones(2), return_dict=True)["masks"]
print("told", hash(tuple(map(int, order))), len(set(map(float, masks))))
"""


def test_all_workers_shuffle_alike_without_a_seed(tmp_path: Path) -> None:
    one, other = told(UNSEEDED, tmp_path)
    assert one == other
    assert one.endswith(" 2"), "both rows have the same mask"


# One worker makes calls alone, and the others continue.
READING = """
import keras, numpy as np, slurm_resolver as sr
strategy = sr.MultiWorkerMirroredStrategy()
with strategy.scope():
    model = keras.Sequential([keras.Input((4,)), keras.layers.BatchNormalization()])
    model.compile("sgd", "mse", metrics=["mae", keras.metrics.AUC(name="auc")])
x = np.ones((8, 4))
model.fit(x, x, verbose=0)
if strategy.cluster_resolver.task_id == 0:
    model.get_weights()
    model.summary(print_fn=str)
    model.save("one.keras")
    results = {name: float(value) for name, value in model.get_metrics_result().items()}
    float(model.optimizer.learning_rate)
    int(model.optimizer.iterations)
    model(x[:2]).numpy()
print("told", sorted(model.fit(x, x, verbose=0).history))
"""


def test_reading_and_saving_need_no_other_worker(tmp_path: Path) -> None:
    assert told(READING, tmp_path) == ["told ['auc', 'loss', 'mae']"] * 2


# With three workers, the error shows which one deviates.
DEVIATING = """
import keras, slurm_resolver as sr
strategy = sr.MultiWorkerMirroredStrategy()
strategy.workers.exchange("begins at the same time", None)  # or the others might end before
try:
    with strategy.scope():
        keras.layers.Dense(4 + (strategy.cluster_resolver.task_id == 1)).build((None, 3))
except sr.FitError as error:
    print("told", error)
"""


def test_every_worker_says_which_one_makes_another_variable(tmp_path: Path) -> None:
    expected = (
        "told the workers make different variables: kernel (float32 (3, 4)) in worker 0, worker 2, "
        "kernel (float32 (3, 5)) in worker 1. Build and compile the same model in every worker"
    )
    assert told(DEVIATING, tmp_path, workers=3) == [expected] * 3


# TensorFlow then refuses what may differ from run to run.
DETERMINISTIC = """
import keras, numpy as np, tensorflow as tf, slurm_resolver as sr
tf.config.experimental.enable_op_determinism()
keras.utils.set_random_seed(1)
strategy = sr.MultiWorkerMirroredStrategy()
with strategy.scope():
    model = keras.Sequential([keras.Input((4,)), keras.layers.Dropout(0.5), keras.layers.Dense(1)])
    model.compile("sgd", "mse", steps_per_execution=2)
x = np.ones((32, 4))
model.fit(x, x[:, :1], batch_size=4, verbose=0)
print("told", model.get_weights()[0].tolist())
"""


def test_training_is_deterministic_where_tensorflow_is(tmp_path: Path) -> None:
    runs = [told(DETERMINISTIC, tmp_path) for _ in range(2)]
    assert len({line for lines in runs for line in lines}) == 1


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


def told(script: str, folder: Path, workers: int = 2) -> Strings:
    """Returns what all workers say in a line that starts with "told"."""
    lines = run([sys.executable, "-W", "ignore", "-c", script], folder, workers).splitlines()
    return sorted(line for line in lines if line.startswith("told"))


def test_a_step_takes_few_round_trips_between_the_workers() -> None:
    """The workers are compared in the first one. A synchronized layer takes two of its own."""
    done = captured(in_step("--no-label -n2", *quiet_helper("keras_collectives.py")), status=0)
    told = [line for line in done.stdout.splitlines() if line.startswith("collectives of ")]
    assert told == [
        "collectives of dense: 1",
        "collectives of convolutions: 1",
        "collectives of synchronized: 3",
    ]


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
