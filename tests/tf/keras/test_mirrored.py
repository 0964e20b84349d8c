"""What all workers have alike under MultiWorkerMirroredStrategy, and what each may do alone."""

from __future__ import annotations

import sys
from pathlib import Path

from keras_marks import KERAS_3
from local_run import captured, in_step
from told_by_workers import told

pytestmark = KERAS_3

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


# Some workers may not notice it in that variable, and make more until another one has failed.
DEVIATING = """
import keras, slurm_resolver as sr
strategy = sr.MultiWorkerMirroredStrategy()
units = 4 + (strategy.cluster_resolver.task_id == 1)
with strategy.scope():
    while True:
        keras.layers.Dense(units, use_bias=False).build((None, 3))
"""


def test_workers_that_make_different_variables_end(tmp_path: Path) -> None:
    step = in_step("-n 3 -K0", sys.executable, "-c", DEVIATING)
    errors = captured(step, status=1, cwd=tmp_path).stderr
    raised = [line for line in errors.splitlines() if "errors.FitError: " in line]
    assert {line[0] for line in raised} == {"0", "1", "2"}
    assert "makes the variable 'kernel' in strategy.scope(), and another one does some" in errors


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
