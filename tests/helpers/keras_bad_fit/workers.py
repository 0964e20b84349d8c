"""Calls in which the workers differ: in the data, in weights, or in what they call."""

from __future__ import annotations

from typing import Any

import keras
import numpy as np
import tensorflow as tf
from keras_bad_fit.common import (
    STRATEGY,
    WORKER,
    Does,
    X,
    Y,
    data,
    fit,
    in_scope,
    model,
    of_kind,
    stop,
    trained,
    way,
)
from kinds import Fields

import slurm_resolver as sr


@way
def other_metrics() -> None:
    fit(metrics=1 + WORKER)


@way
def other_data() -> None:
    fit(x=data(96 - 48 * WORKER))


@way
def other_rows() -> None:
    fit(
        x=np.random.default_rng(WORKER).normal(size=(96, 6)).astype("float32"),
        y=Y,
        batch_size=24,
        shuffle=False,
    )


@way
def other_rate() -> None:
    fit(
        epochs=2,
        callbacks=[keras.callbacks.LearningRateScheduler(lambda epoch: 0.1 / (epoch + 1))]
        if WORKER
        else [],
    )


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
def other_weights() -> None:
    fit(callbacks=[Does(lambda model: model.layers[0].bias.assign([5.0]))] if WORKER else [])


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


@way
def other_momentum() -> None:
    trained(in_scope(lambda: model(keras.optimizers.SGD(0.1, momentum=0.9 * WORKER))))


@way
def class_weight_in_one() -> None:
    fit(class_weight={0: 1.0, 1: 2.0} if WORKER else None)


@way
def restored_in_one() -> None:
    fit(callbacks=[sr.BackupAndResume("unused")] if WORKER else [])


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
def other_order_of_python() -> None:
    fit(x=Rows(WORKER))


@way
def noise_of_its_own() -> str:
    """The targets show that the rows are the same."""
    return fit(x=Rows(0))


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
def own_data() -> None:
    fit(x=own(data(96 - 48 * WORKER)))


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
def own_data_of_one_size() -> str:
    return fit(x=own(data(96 - 48 * WORKER).repeat()), steps_per_epoch=3)


class Centered(keras.Model):  # type: ignore[misc]
    def train_step(self, batch: Any) -> Fields:
        with tf.GradientTape() as tape:
            errors = self(batch[0]) - batch[1]
            loss = tf.reduce_mean((errors - tf.reduce_mean(errors)) ** 2)
        weights = self.trainable_variables
        self.optimizer.apply(tape.gradient(loss, weights), weights)
        return {"loss": loss}


@way
def own_data_compared() -> str:
    return trained(of_kind(Centered), x=own(data()))


@way
def own_data_eagerly() -> None:
    built = of_kind(Centered)
    built.run_eagerly = True
    trained(built, x=own(data()))
