"""Trains small models with Keras 3 in many ways, alone or as one of several workers.

What came of each way goes as JSON to the file named by rank in the folder TASK_OUTPUT; alone, to
"alone". With --tensorflow the strategy is TensorFlow's own class.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from pathlib import Path
from typing import Any, Callable, Dict, Iterator, List, Tuple

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
os.environ.setdefault("TF_ENABLE_ONEDNN_OPTS", "0")

import keras
import numpy as np
import tensorflow as tf

import slurm_resolver as sr
from slurm_resolver.preflight import keras_version

Outcome = Dict[str, Any]
Case = Callable[[tf.distribute.Strategy], Outcome]
CASES: Dict[str, Case] = {}

ROWS, COLUMNS, BATCH = 120, 6, 24
SHORTER = 102
_random = np.random.default_rng(7)
X = _random.normal(size=(ROWS, COLUMNS)).astype("float32")
Y = (X @ _random.normal(size=(COLUMNS, 3))).argmax(axis=1).astype("int32")


def case(function: Case) -> Case:
    CASES[function.__name__] = function
    return function


def dataset(rows: int = ROWS, batch: int = BATCH) -> tf.data.Dataset:
    return tf.data.Dataset.from_tensor_slices((X[:rows], Y[:rows])).batch(batch)


class Rows(keras.metrics.Metric):  # type: ignore[misc]
    """How many rows an epoch has seen, in all workers together."""

    def __init__(self) -> None:
        super().__init__(name="rows")
        self.rows = self.add_variable((), initializer="zeros", name="rows")

    def update_state(self, y_true: Any, y_pred: Any, sample_weight: Any = None) -> None:
        self.rows.assign_add(tf.cast(tf.shape(y_true)[0], self.rows.dtype))

    def result(self) -> Any:
        return tf.convert_to_tensor(self.rows)


def build(
    strategy: tf.distribute.Strategy,
    *layers: Callable[[], Any],
    optimizer: Callable[[], Any] = lambda: keras.optimizers.SGD(0.1),
    steps_per_execution: int = 1,
    model_class: Any = None,
) -> Any:
    """A perceptron with these layers in its middle, the same at every start."""
    keras.utils.set_random_seed(3)
    with strategy.scope():
        inputs = keras.Input((COLUMNS,))
        hidden = keras.layers.Dense(8, activation="relu")(inputs)
        for layer in layers:
            hidden = layer()(hidden)
        outputs = keras.layers.Dense(3, dtype="float32")(hidden)
        model = (model_class or keras.Model)(inputs, outputs)
        model.compile(
            optimizer=optimizer(),
            loss=keras.losses.SparseCategoricalCrossentropy(from_logits=True),
            metrics=["accuracy", Rows()],
            steps_per_execution=steps_per_execution,
        )
    return model


def outcome(model: Any, data: Any, history: Any = None, **evaluation: Any) -> Outcome:
    """All that one may see of a training."""
    result: Outcome = {
        "weights": [np.asarray(weight, dtype="float64").tolist() for weight in model.get_weights()],
        "evaluate": [float(value) for value in model.evaluate(data, verbose=0, **evaluation)],
    }
    if history is not None:
        result["history"] = {
            name: [float(value) for value in values] for name, values in history.history.items()
        }
    return result


def trained(model: Any, data: Any, epochs: int = 2, **how: Any) -> Outcome:
    history = model.fit(data, epochs=epochs, verbose=0, **how)
    result = outcome(model, dataset(), history)
    result["predict"] = np.asarray(model.predict(dataset(), verbose=0)).tolist()
    return result


@case
def datasets(strategy: tf.distribute.Strategy) -> Outcome:
    return trained(build(strategy), dataset())


@case
def adam(strategy: tf.distribute.Strategy) -> Outcome:
    return trained(build(strategy, optimizer=lambda: keras.optimizers.Adam(0.01)), dataset())


@case
def uneven_end(strategy: tf.distribute.Strategy) -> Outcome:
    """The last batch is shorter, and divides by two and by three."""
    return trained(build(strategy), dataset(rows=SHORTER))


@case
def arrays(strategy: tf.distribute.Strategy) -> Outcome:
    model = build(strategy)
    return trained(model, X, y=Y, batch_size=BATCH, shuffle=False)


@case
def arrays_with_an_uneven_end(strategy: tf.distribute.Strategy) -> Outcome:
    model = build(strategy)
    return trained(model, X[:SHORTER], y=Y[:SHORTER], batch_size=BATCH, shuffle=False)


@case
def validation_data(strategy: tf.distribute.Strategy) -> Outcome:
    return trained(build(strategy), dataset(), validation_data=dataset(rows=50, batch=10))


@case
def validation_split(strategy: tf.distribute.Strategy) -> Outcome:
    model = build(strategy)
    return trained(model, X, y=Y, batch_size=BATCH, shuffle=False, validation_split=0.2)


@case
def class_weight(strategy: tf.distribute.Strategy) -> Outcome:
    return trained(build(strategy), dataset(), class_weight={0: 1.0, 1: 0.2, 2: 3.0})


@case
def sample_weight(strategy: tf.distribute.Strategy) -> Outcome:
    weights = np.linspace(0.1, 2.0, ROWS).astype("float32")
    data = tf.data.Dataset.from_tensor_slices((X, Y, weights)).batch(BATCH)
    return trained(build(strategy), data)


@case
def steps_per_execution(strategy: tf.distribute.Strategy) -> Outcome:
    return trained(build(strategy, steps_per_execution=5), dataset())


@case
def steps_per_execution_with_a_rest(strategy: tf.distribute.Strategy) -> Outcome:
    return trained(build(strategy, steps_per_execution=2), dataset(rows=SHORTER))


@case
def steps_per_epoch(strategy: tf.distribute.Strategy) -> Outcome:
    return trained(build(strategy), dataset().repeat(), epochs=3, steps_per_epoch=4)


@case
def initial_epoch(strategy: tf.distribute.Strategy) -> Outcome:
    return trained(build(strategy), dataset(), epochs=4, initial_epoch=2)


PyDataset: Any = getattr(keras.utils, "PyDataset", object)  # Keras 3.0 has none


class Batches(PyDataset):  # type: ignore[misc]
    """The dataset as a PyDataset, its last batch shorter."""

    def __len__(self) -> int:
        return -(-SHORTER // BATCH)

    def __getitem__(self, index: int) -> Tuple[np.ndarray, np.ndarray]:
        rows = slice(index * BATCH, min(SHORTER, (index + 1) * BATCH))
        return X[rows], Y[rows]


@case
def py_dataset(strategy: tf.distribute.Strategy) -> Outcome:
    return trained(build(strategy), Batches(), shuffle=False)


@case
def generator(strategy: tf.distribute.Strategy) -> Outcome:
    """The same batch again and again: Keras draws an unknown number of them before it trains."""

    def batches() -> Iterator[Tuple[np.ndarray, np.ndarray]]:
        while True:
            yield X[:BATCH], Y[:BATCH]

    return trained(build(strategy), batches(), steps_per_epoch=5)


@case
def parts_of_unequal_size(strategy: tf.distribute.Strategy) -> Outcome:
    """Each worker's part of the last batch counts the same, whatever its size."""
    return trained(build(strategy), dataset(rows=101))


@case
def batch_normalization(strategy: tf.distribute.Strategy) -> Outcome:
    """Synchronized, so that it normalizes whole batches whoever holds them."""
    layer = normalization(synchronized=True)
    return trained(build(strategy, layer), dataset())


def normalization(**how: Any) -> Callable[[], Any]:
    return lambda: keras.layers.BatchNormalization(momentum=0.9, **how)


@case
def statistics(strategy: tf.distribute.Strategy) -> Outcome:
    """The moving averages of a layer that sees the input itself: those of all parts together."""
    keras.utils.set_random_seed(3)
    with strategy.scope():
        layer = keras.layers.BatchNormalization(momentum=0.9)
        model = keras.Sequential([keras.Input((COLUMNS,)), layer, keras.layers.Dense(3)])
        loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
        model.compile(optimizer=keras.optimizers.SGD(0.0), loss=loss)
    model.fit(dataset(), epochs=2, verbose=0)
    mean: List[float] = np.asarray(layer.moving_mean).tolist()
    return {"moving_mean": mean}


@case
def mixed_precision(strategy: tf.distribute.Strategy) -> Outcome:
    keras.mixed_precision.set_global_policy("mixed_bfloat16")
    try:
        return trained(build(strategy), dataset())
    finally:
        keras.mixed_precision.set_global_policy("float32")


@case
def dicts(strategy: tf.distribute.Strategy) -> Outcome:
    keras.utils.set_random_seed(3)
    with strategy.scope():
        left, right = keras.Input((3,), name="left"), keras.Input((3,), name="right")
        joined = keras.layers.Concatenate()([left, right])
        outputs = {
            "label": keras.layers.Dense(3, name="label")(joined),
            "sum": keras.layers.Dense(1, name="sum")(joined),
        }
        model = keras.Model({"left": left, "right": right}, outputs)
        losses = {
            "label": keras.losses.SparseCategoricalCrossentropy(from_logits=True),
            "sum": "mse",
        }
        model.compile(optimizer=keras.optimizers.SGD(0.05), loss=losses)
    inputs = {"left": X[:, :3], "right": X[:, 3:]}
    targets = {"label": Y, "sum": X.sum(axis=1, keepdims=True)}
    data = tf.data.Dataset.from_tensor_slices((inputs, targets)).batch(BATCH)
    history = model.fit(data, epochs=2, verbose=0)
    result = outcome(model, data, history)
    predicted = model.predict(data, verbose=0)
    result["predict"] = [predicted[name].tolist() for name in sorted(predicted)]
    return result


class OwnStep(keras.Model):  # type: ignore[misc]
    """A model with a training step of its own."""

    def train_step(self, data: Any) -> Dict[str, Any]:
        x, y = data
        with tf.GradientTape() as tape:
            predicted = self(x, training=True)
            loss = 0.5 * self.compute_loss(x=x, y=y, y_pred=predicted)
        gradients = tape.gradient(loss, self.trainable_weights)
        self.optimizer.apply(gradients, self.trainable_weights)
        logs: Dict[str, Any] = self.compute_metrics(x, y, predicted)
        return logs


@case
def own_train_step(strategy: tf.distribute.Strategy) -> Outcome:
    return trained(build(strategy, model_class=OwnStep), dataset())


class OwnLogs(keras.Model):  # type: ignore[misc]
    """A model whose training step tells something else than its metrics."""

    def train_step(self, data: Any) -> Dict[str, Any]:
        super().train_step(data)
        return {"whole": 2, "half": 0.5, "tensor": tf.constant(3), "inner": {"float": 4.0}}


@case
def own_logs(strategy: tf.distribute.Strategy) -> Outcome:
    return trained(build(strategy, model_class=OwnLogs), dataset())


@case
def early_stopping(strategy: tf.distribute.Strategy) -> Outcome:
    stop = keras.callbacks.EarlyStopping(monitor="loss", min_delta=0.02)
    return trained(build(strategy), dataset(), epochs=30, callbacks=[stop])


@case
def learning_rate(strategy: tf.distribute.Strategy) -> Outcome:
    schedule = keras.callbacks.LearningRateScheduler(lambda epoch: 0.1 / (epoch + 1))
    return trained(build(strategy), dataset(), epochs=3, callbacks=[schedule])


@case
def strings(strategy: tf.distribute.Strategy) -> Outcome:
    words = np.array(["abc"[label] for label in Y])
    keras.utils.set_random_seed(3)
    with strategy.scope():
        lookup = keras.layers.StringLookup(vocabulary=["a", "b", "c"], output_mode="one_hot")
        model = keras.Sequential([keras.layers.Dense(3)])
        loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
        model.compile(optimizer=keras.optimizers.SGD(0.1), loss=loss, metrics=["accuracy"])
    data = tf.data.Dataset.from_tensor_slices((words, Y)).batch(BATCH)
    data = data.map(lambda word, label: (lookup(word), label))
    history = model.fit(data, epochs=2, verbose=0)
    return outcome(model, data, history)


class SumOfRow(keras.Model):  # type: ignore[misc]
    """Takes rows of different lengths."""

    def __init__(self) -> None:
        super().__init__()
        self.dense = keras.layers.Dense(2)

    def call(self, rows: Any) -> Any:
        return self.dense(tf.reshape(tf.reduce_sum(tf.cast(rows, tf.float32), axis=1), (-1, 1)))


@case
def ragged(strategy: tf.distribute.Strategy) -> Outcome:
    lists = [list(range(1, 2 + row % 4)) for row in range(BATCH * 2)]
    rows, labels = tf.ragged.constant(lists), np.array([len(numbers) % 2 for numbers in lists])
    keras.utils.set_random_seed(3)
    with strategy.scope():
        model = SumOfRow()
        loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
        model.compile(optimizer=keras.optimizers.SGD(0.01), loss=loss, metrics=["accuracy"])
    data = tf.data.Dataset.from_tensor_slices((rows, labels)).batch(BATCH)
    history = model.fit(data, epochs=2, verbose=0)
    return outcome(model, data, history)


def run(strategy: tf.distribute.Strategy, names: List[str]) -> Dict[str, Outcome]:
    found: Dict[str, Outcome] = {}
    for name in names:
        try:
            found[name] = CASES[name](strategy)
        except Exception as error:
            found[name] = {"error": f"{type(error).__name__}: {str(error).strip()[:300]}"}
    return found


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--tensorflow", action="store_true")
    parser.add_argument("--alone", action="store_true")
    parser.add_argument("--ps", action="store_true", help="a chief and a parameter server")
    parser.add_argument("--any-keras", action="store_true", help="also one that trains wrongly")
    parser.add_argument("cases", nargs="*", default=list(CASES))
    args = parser.parse_args()
    if args.any_keras:
        vars(keras_version)["check_keras"] = lambda: None
    if args.alone:
        name, strategy = "alone", tf.distribute.OneDeviceStrategy("/cpu:0")
    elif args.ps:
        resolver = sr.SlurmClusterResolver({"chief": 1, "ps": 1, "worker": -1})
        if resolver.task_type != "chief":
            sys.exit(resolver.serve())
        name, strategy = "chief", sr.ParameterServerStrategy(resolver)
    else:
        resolver = sr.SlurmClusterResolver()
        kind = tf.distribute if args.tensorflow else sr
        name = str(resolver.task_id)
        strategy = kind.MultiWorkerMirroredStrategy(cluster_resolver=resolver)
    found = run(strategy, args.cases)
    Path(os.environ["TASK_OUTPUT"], name).write_text(json.dumps(found))


if __name__ == "__main__":
    main()
