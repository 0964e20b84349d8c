"""Programs with metrics and callbacks, and programs from Keras' guides."""

# mypy: allow-subclassing-any

from __future__ import annotations

import os
from typing import Any

import keras
import tensorflow as tf
from keras import callbacks as kc
from keras import layers, ops
from keras import metrics as km
from keras_programs.common import (
    BINARY,
    WEIGHT,
    Outcome,
    Recorder,
    X,
    Y,
    add_each,
    build,
    crossentropy,
    data,
    fitted,
    numbers,
    perceptron,
    program,
    ready,
    seen,
    trained,
)
from kinds import Action, Fields


class Histogram(km.Metric):
    """Assigns a new sum to its variable, like the guide's metric, and returns two results."""

    def __init__(self) -> None:
        super().__init__(name="histogram")
        self.counts = self.add_weight(
            shape=(4,),
            initializer="zeros",
            name="counts",
        )

    def update_state(self, y_true: Any, y_pred: Any, sample_weight: Any = None) -> None:
        rows = ops.one_hot(
            ops.cast(y_true[:, 0], "int32"),
            4,
        )
        if sample_weight is not None:
            rows = rows * ops.cast(sample_weight, "float32")[:, None]
        self.counts.assign(self.counts + ops.sum(rows, axis=0))

    def result(self) -> Any:
        return {
            "few": ops.min(self.counts),
            "many": ops.max(self.counts),
        }


AUC: list[Action] = [km.AUC, lambda: km.F1Score(threshold=0.5)]
METRICS: Fields = {
    "auc": {"metrics": AUC},
    "r2": {"metrics": [km.R2Score]},
    "own_vector": {"metrics": [Histogram]},
    "weighted_auc": {"weighted_metrics": AUC},
    "weighted_own_vector": {"weighted_metrics": [Histogram]},
}


def _of(strategy: Any, entry: Fields) -> Outcome:
    how = {
        "outputs": 1,
        "activation": "sigmoid",
        "loss": "binary_crossentropy",
        "metrics": None,
        **entry,
    }
    model = build(strategy, **how)
    recorder = Recorder()
    weight = [WEIGHT] if "weighted_metrics" in entry else []
    data_ = data(X, BINARY, *weight)
    history = model.fit(
        data_, epochs=2, verbose=0, callbacks=[recorder], validation_data=data_.take(2)
    )
    batches = {"train": recorder.train, "test": recorder.test}
    return {"batches": batches, **seen(model, history, data_)}


add_each("metric", _of, METRICS)


class SumAndLargest(km.Metric):
    """Adds up values, or the largest one of the batch, which is no sum over its rows."""

    def __init__(self) -> None:
        super().__init__(name="sum_and_largest")
        self.total = self.add_weight(name="total", initializer="zeros")

    def update_state(self, values: Any, largest: bool = False) -> None:
        self.total.assign_add(ops.max(values) if largest else ops.sum(values))

    def result(self) -> Any:
        return ops.copy(self.total)


class Watching(keras.layers.Layer):
    """Tracks a mean and sums of its inputs."""

    def __init__(self) -> None:
        super().__init__()
        self.mean = km.Mean(name="watched_mean")
        self.sum = km.Sum(name="watched_sum")
        self.both = SumAndLargest()

    def call(self, inputs: Any) -> Any:
        self.mean.update_state(inputs)
        self.sum.update_state(inputs)
        self.both.update_state(inputs)
        self.both.update_state(inputs, largest=True)
        return inputs


@program("metric")
def in_call_of_a_layer(strategy: Any) -> Outcome:
    return fitted(build(strategy, Watching), data())


class Reading(kc.Callback):
    """Reads the metrics, the variables and the learning rate after every batch."""

    def __init__(self) -> None:
        super().__init__()
        self.read: list[Any] = []

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        results = [metric.result() for metric in self.model.metrics]
        iterations = self.model.optimizer.iterations
        self.read += [
            numbers(
                [
                    results,
                    iterations,
                    self.model.trainable_variables[0],
                ]
            )
        ]

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        self.read += [numbers(self.model.get_metrics_result())]
        self.read += [numbers(self.model.predict(X[:3], verbose=0))]


@program("callback")
def reading_metrics(strategy: Any) -> Outcome:
    reading = Reading()
    return {
        **fitted(
            build(strategy),
            data(),
            callbacks=[reading],
        ),
        "read": reading.read,
    }


GUIDES: dict[str, Action] = {
    "unbuilt_sequential": lambda: keras.Sequential([layers.Dense(4, "relu"), layers.Dense(3)]),
    "synchronized_batch_normalization": lambda: perceptron(
        lambda: layers.BatchNormalization(momentum=0.9, synchronized=True)
    ),
}


add_each("guide", trained, GUIDES)


@program("guide", differs="normalizes each row by the other rows of its batch")
def batch_normalization(strategy: Any) -> Outcome:
    return fitted(build(strategy, layers.BatchNormalization), data())


@program("guide")
def lora(strategy: Any) -> Outcome:
    model = build(strategy)
    with strategy.scope():
        model.layers[1].enable_lora(2)
        model.compile("sgd", crossentropy())
    return fitted(model, data(), predict=True)


@program("guide")
def unbuilt_running_eagerly(strategy: Any) -> Outcome:
    """The first step builds it, outside of any graph."""
    unbuilt = GUIDES["unbuilt_sequential"]
    return fitted(
        ready(strategy, unbuilt, run_eagerly=True),
        data(),
    )


@program("guide")
def stateful_lstm(strategy: Any) -> Outcome:
    """Each row of a batch goes on with the state of that row in the batch before."""
    model = ready(
        strategy,
        lambda: keras.Sequential(
            [
                keras.Input(batch_shape=(24, X.shape[1], 1)),
                layers.LSTM(3, stateful=True),
            ]
        ),
    )
    rows = tf.data.Dataset.from_tensor_slices((X[..., None], Y))
    return fitted(model, rows.batch(24, drop_remainder=True))


@program("guide")
def quantized_and_fitted(strategy: Any) -> Outcome:
    """Trains the biases, which are what int8 leaves."""
    model = build(strategy)
    model.fit(data(), verbose=0)
    model.quantize("int8")
    return fitted(model, data(), predict=True)


@program("guide", within=5e-3)
def trained_in_float8(strategy: Any) -> Outcome:
    model = build(strategy)
    model.quantize("float8")
    with strategy.scope():
        model.compile("sgd", crossentropy())
    return fitted(model, data())


@program("guide")
def saved_and_loaded(strategy: Any) -> Outcome:
    """Each process saves to its own file; keras_saving.py covers a shared one."""
    model = build(
        strategy,
        optimizer=lambda: keras.optimizers.Adam(0.01),
    )
    model.fit(data(), verbose=0)
    file = f"saved{os.getpid()}.keras"
    model.save(file)
    with strategy.scope():
        model = keras.models.load_model(file)
    return fitted(model, data(), predict=True)


@program("loop")
def with_metrics(strategy: Any) -> Outcome:
    """Updates metrics in strategy.run, also in a condition, and reads them in the loop.

    With the second size of a batch, the step is traced again, but not the function that it calls.
    """
    with strategy.scope():
        mean = km.Mean()
        error = km.MeanAbsoluteError()
        total = km.Sum()

    @tf.function  # type: ignore[untyped-decorator]
    def add(number: Any) -> None:
        total.update_state(number)

    def replica(number: Any, x: Any) -> None:
        add(tf.reduce_sum(x))
        mean.update_state(x)
        error.update_state(tf.zeros_like(x), x)
        if number > 1:
            mean.update_state(2.0 * x)

    @tf.function  # type: ignore[untyped-decorator]
    def step(number: Any, x: Any) -> None:
        strategy.run(replica, args=(number, x))

    found = []
    rows = tf.data.Dataset.from_tensor_slices(X[:48])
    for size in (12, 8):
        batches = rows.batch(size, drop_remainder=True)
        for number, batch in enumerate(strategy.experimental_distribute_dataset(batches)):
            step(tf.constant(number), batch)
            found.append([mean.result(), error.result(), total.result()])
    mean.reset_state()
    return {
        "metrics": numbers(found),
        "reset": numbers(mean.result()),
    }


@program("model")
def frozen_outside(strategy: tf.distribute.Strategy) -> Outcome:
    """Uses a frozen model that was made outside the scope, as a layer."""
    keras.utils.set_random_seed(7)
    frozen = perceptron(layers.BatchNormalization)
    frozen.trainable = False

    def make() -> Any:
        inputs = keras.Input(frozen.input_shape[1:])
        hidden = layers.Dense(8, activation="relu")(inputs)
        return keras.Model(
            inputs,
            layers.Dense(3)(layers.concatenate([frozen(inputs), hidden])),
        )

    return fitted(
        ready(strategy, make),
        data(),
        predict=True,
    )
