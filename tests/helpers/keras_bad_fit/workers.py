"""Calls in which the workers differ: in the data, in weights, or in what they call."""

from __future__ import annotations

from typing import Any

import keras
import numpy as np
import tensorflow as tf
from keras_bad_fit.common import (
    STRATEGY,
    WAYS,
    WORKER,
    Centered,
    Does,
    X,
    Y,
    data,
    fit,
    fit_with,
    in_scope,
    model,
    of_kind,
    stop,
    trained,
    way,
)
from kinds import Fields

import slurm_resolver as sr


class Summing(keras.Model):  # type: ignore[misc]
    def train_step(self, batch: Any) -> Fields:
        return {"seen": 2.0 * self.seen}


class Drawing(keras.Model):  # type: ignore[misc]
    def train_step(self, batch: Any) -> Fields:
        return {"drawn": tf.random.normal([])}


@way
def other_seeds() -> None:
    tf.random.set_seed(1 + WORKER)
    try:
        trained(of_kind(Drawing))
    finally:
        tf.random.set_seed(1)


@way
def own_sums() -> None:
    summing = of_kind(Summing)
    summing.seen = in_scope(
        tf.Variable,
        1.0,
        synchronization=tf.VariableSynchronization.ON_READ,
        aggregation=tf.VariableAggregation.SUM,
    )
    trained(summing)


@way
def other_weights_before() -> None:
    built = in_scope()
    if WORKER:
        built.layers[0].bias.assign([5.0])
    built.evaluate(data(), verbose=0)


@way
def other_frozen_model() -> None:
    frozen = model()
    frozen.layers[0].bias.assign([5.0 * WORKER])
    frozen.trainable = False
    trained(of_kind(lambda inputs, outputs: keras.Model(inputs, frozen(inputs) + outputs)))


NUMBERS = np.arange(96, dtype="float32")[:, None]


@way
def other_order_in_predict() -> None:
    rows = np.repeat(NUMBERS, 6, axis=1)
    in_scope().predict(
        rows[::-1] if WORKER else rows,
        batch_size=24,
        verbose=0,
    )


class Rows(keras.utils.PyDataset):  # type: ignore[misc]
    """Rows with noise that each worker draws for itself, and their numbers as targets."""

    def __init__(self, worker: int) -> None:
        super().__init__()
        self.first = 24 * worker

    def __len__(self) -> int:
        return 3

    def __getitem__(self, place: int) -> Any:
        start = self.first + 24 * place
        noise = np.random.default_rng().normal(size=(24, 6)).astype("float32")
        return noise, NUMBERS[start : start + 24] / 96


@way
def stops_after_an_epoch() -> int:
    """One worker has a callback, and the other gives none."""
    return len(
        in_scope()
        .fit(data(), epochs=3, verbose=0, callbacks=[Does(stop)] if WORKER else None)
        .history["loss"]
    )


def own(rows: tf.data.Dataset) -> tf.data.Dataset:
    options = tf.data.Options()
    options.experimental_distribute.auto_shard_policy = tf.data.experimental.AutoShardPolicy.OFF
    return rows.with_options(options)


@way
def divided_eagerly() -> None:
    def run_eagerly(model: Any) -> None:
        model.run_eagerly = True

    rows = tf.data.Dataset.from_tensor_slices((X, Y)).map(lambda x, y: (x, y))
    fit(x=rows.batch(24), callbacks=[Does(run_eagerly, step=0)])


@way
def metric_in_function() -> None:
    mean = in_scope(keras.metrics.Mean, "watched")

    def of_replica() -> None:
        mean.update_state(1.0)
        tf.function(mean.result, autograph=False)()

    STRATEGY.run(of_replica)


@way
def other_calls() -> None:
    built = in_scope()
    (built.predict if WORKER else built.evaluate)(data(), verbose=0)


@way
def all_raise() -> None:
    def fails(model: Any) -> None:
        raise ValueError(f"in worker {WORKER}")

    fit(callbacks=[Does(fails)])


class Failing(keras.layers.Layer):  # type: ignore[misc]
    def call(self, x: Any) -> None:
        raise ValueError("of the layer")


@way
def layer_raises() -> None:
    """Keras leaves a model half built, and refuses to build it again for another shape."""
    model = in_scope(keras.Sequential, [keras.layers.Dense(1), Failing()])
    in_scope(model.compile, "sgd", "mse")
    model.fit(data(), verbose=0)


@way
def alone_on_purpose() -> str:
    """Trains in another strategy and evaluates without one; neither is a mistake."""
    with tf.distribute.OneDeviceStrategy("/cpu:0").scope():
        helper = model()
    model().evaluate(data(), verbose=0)
    return trained(helper, x=data(96 - 48 * WORKER))


@way
def own_data_eagerly() -> None:
    built = of_kind(Centered)
    built.run_eagerly = True
    trained(built, x=own(data()))


WAYS.update(
    {
        "other_metrics": lambda: fit(metrics=1 + WORKER),
        "other_data": lambda: fit(x=data(96 - 48 * WORKER)),
        "other_rows": lambda: fit(
            x=np.random.default_rng(WORKER).normal(size=(96, 6)).astype("float32"),
            y=Y,
            batch_size=24,
            shuffle=False,
        ),
        "other_rate": lambda: fit_with(
            keras.callbacks.LearningRateScheduler(lambda epoch: 0.1 / (epoch + 1)),
            epochs=2,
        ),
        "other_weights": lambda: fit_with(
            Does(lambda model: model.layers[0].bias.assign([5.0])),
        ),
        "other_momentum": lambda: trained(
            in_scope(lambda: model(keras.optimizers.SGD(0.1, momentum=0.9 * WORKER))),
        ),
        "class_weight_in_one": lambda: fit(class_weight={0: 1.0, 1: 2.0} if WORKER else None),
        "restored_in_one": lambda: fit(callbacks=[sr.BackupAndResume("unused")] if WORKER else []),
        "other_order_of_python": lambda: fit(x=Rows(WORKER)),
        # The targets show that the rows are the same.
        "noise_of_its_own": lambda: fit(x=Rows(0)),
        "own_data": lambda: fit(x=own(data(96 - 48 * WORKER))),
        "own_data_of_one_size": lambda: fit(
            x=own(data(96 - 48 * WORKER).repeat()),
            steps_per_epoch=3,
        ),
        "own_data_compared": lambda: trained(of_kind(Centered), x=own(data())),
    }
)
