"""What all workers have alike under MultiWorkerMirroredStrategy, and what each may do alone."""

from __future__ import annotations

from pathlib import Path

from keras_marks import KERAS_3
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


# With three workers, the error shows which one deviates. The others may not notice it in that
# variable, and make more until they do.
DEVIATING = """
import keras, slurm_resolver as sr
strategy = sr.MultiWorkerMirroredStrategy()
units = 4 + (strategy.cluster_resolver.task_id == 1)
try:
    with strategy.scope():
        while True:
            keras.layers.Dense(units, use_bias=False).build((None, 3))
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
