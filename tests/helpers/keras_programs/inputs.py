"""Inputs of several kinds; evaluation, prediction and single batches; fits in turn."""

# mypy: allow-subclassing-any

from __future__ import annotations

from pathlib import Path
from typing import Any, Dict

import keras
import numpy as np
import tensorflow as tf
from keras import layers
from keras_programs.common import (
    BINARY,
    COLUMNS,
    WEIGHT,
    Outcome,
    X,
    Y,
    build,
    crossentropy,
    data,
    fitted,
    numbers,
    program,
    ready,
    seen,
)
from keras_programs.data import Batches, batches, endless, written


def joined(names: Dict[str, str], sparse: bool = False) -> Any:
    """Two inputs, by their names, and an output each."""
    left, right = (
        keras.Input((3,), name=name, sparse=sparse and name == names["left"])
        for name in names.values()
    )
    hidden = layers.Concatenate()([layers.Dense(4)(left), layers.Dense(2)(right)])
    label, yes = layers.Dense(3, name="label")(hidden), layers.Dense(1, name="yes")(hidden)
    return keras.Model([left, right], [label, yes])


HALVES = {"left": X[:, :3], "right": X[:, 3:]}


@program("data")
def dict_inputs(strategy: Any) -> Outcome:
    model = _joined(strategy)
    return fitted(model, data(HALVES, (Y, BINARY)), predict=True)


def _joined(strategy: Any, **how: Any) -> Any:
    losses = [crossentropy, "mse"]
    names = {"left": "left", "right": "right"}
    return ready(strategy, lambda: joined(names, **how), loss=losses, metrics=[["accuracy"], []])


@program("data")
def sparse_inputs(strategy: Any) -> Outcome:
    model = _joined(strategy, sparse=True)
    sparse = data((X[:, :3], X[:, 3:]), (Y, BINARY)).map(
        lambda x, y: ((tf.sparse.from_dense(tf.nn.relu(x[0])), x[1]), y)
    )
    return fitted(model, sparse)


class SumOfRow(keras.Model):
    def __init__(self) -> None:
        super().__init__()
        self.dense = layers.Dense(3)

    def call(self, rows: Any) -> Any:
        return self.dense(tf.reshape(tf.reduce_sum(rows, axis=1), (-1, 1)))


@program("data")
def ragged(strategy: Any) -> Outcome:
    rows = tf.RaggedTensor.from_row_lengths(X.flatten()[:300], [1 + row % 4 for row in range(120)])
    model = ready(strategy, SumOfRow, metrics=["accuracy"])
    return fitted(model, data(rows, Y), predict=True)


@program("data")
def image_directory(strategy: Any) -> Outcome:
    def write(folder: Path) -> None:
        for number in range(18):
            place = folder / "ab"[number % 2]
            place.mkdir(exist_ok=True)
            pixels = np.uint8(np.abs(X[number : number + 4] * 60)[..., None].repeat(3, axis=-1))
            keras.utils.save_img(place / f"{number:02}.png", pixels, scale=False)

    images = keras.utils.image_dataset_from_directory(
        written(write), image_size=(4, 6), batch_size=8, seed=4, shuffle=False, verbose=False
    )

    def make() -> Any:
        return keras.Sequential([layers.Rescaling(1 / 255), layers.Flatten(), layers.Dense(2)])

    return fitted(ready(strategy, make, metrics=["accuracy"]), images, predict=True)


@program("data")
def same_dataset_in_two_fits(strategy: Any) -> Outcome:
    model, rows = build(strategy), data(rows=33, batch=8)
    model.fit(rows, verbose=0)
    return fitted(model, rows, epochs=3, initial_epoch=1)


@program("data")
def validation_generator(strategy: Any) -> Outcome:
    return fitted(
        build(strategy), data(), validation_data=endless(33, 8), validation_steps=3, epochs=2
    )


@program("data")
def on_batch(strategy: Any) -> Outcome:
    """One call for one batch, and rows that three workers cannot share equally."""
    model = build(strategy, weighted_metrics=["accuracy"])
    logs = [model.train_on_batch(X[:24], Y[:24])]
    logs += [model.train_on_batch(X[:7], Y[:7], sample_weight=WEIGHT[:7], return_dict=True)]
    logs += [model.train_on_batch(X[:24], Y[:24], class_weight={0: 1.0, 1: 2.0, 2: 0.5})]
    logs += [model.test_on_batch(X[:24], Y[:24]), model.test_on_batch(X[:1], Y[:1], WEIGHT[:1])]
    predicted = [model.predict_on_batch(X[:24]), model.predict_on_batch(X[:1])]
    return {"logs": numbers(logs), "predict": numbers(predicted), **seen(model)}


@program("data")
def predictions(strategy: Any) -> Outcome:
    """Of arrays, datasets and generators, and by many steps at once."""
    model = build(strategy)
    many = build(strategy, steps_per_execution=50)
    inputs = tf.data.Dataset.from_tensor_slices(X[:33])
    found = {
        "33": model.predict(X[:33], batch_size=8, verbose=0),
        "1": model.predict(X[:1], verbose=0),
        "2_batches_of_1": model.predict(X[:2], batch_size=1, verbose=0),
        "dataset": model.predict(inputs.batch(8), verbose=0),
        "steps": model.predict(inputs.repeat().batch(8), steps=3, verbose=0),
        "py_dataset": model.predict(Batches(), verbose=0),
        "50_steps": many.predict(X[:33], batch_size=8, verbose=0),
        "50_steps_exactly": many.predict(X[:100], batch_size=2, verbose=0),
        "called": model(X[:5]),
    }
    return {"shapes": {name: list(value.shape) for name, value in found.items()}, **numbers(found)}


@program("data")
def prediction_of_a_generator(strategy: Any) -> Outcome:
    found = build(strategy).predict(((x,) for x, y in batches()), verbose=0)
    return {"predict": numbers(found)}


@program("data")
def predicted_dicts_and_sequences(strategy: Any) -> Outcome:
    def make() -> Any:
        inputs = keras.Input((COLUMNS, 1))
        hidden = layers.GRU(3, return_sequences=True)(inputs)
        one = layers.Dense(2)(layers.Flatten()(hidden))
        return keras.Model(inputs, {"sequence": hidden, "nested": [one, {"mean": one + 1.0}]})

    model = ready(strategy, make, loss=None)
    found = [model.predict(X[:rows, :, None], batch_size=8, verbose=0) for rows in (33, 24, 1)]
    return {"predict": numbers(found)}


@program("data")
def evaluations(strategy: Any) -> Outcome:
    model = build(strategy, weighted_metrics=["accuracy"])
    many = build(strategy, steps_per_execution=4)
    found = {
        "arrays": model.evaluate(X[:33], Y[:33], batch_size=8, verbose=0),
        "weighted": model.evaluate(X[:33], Y[:33], 8, 0, sample_weight=WEIGHT[:33]),
        "steps": model.evaluate(data(batch=8).repeat(), steps=5, verbose=0),
        "generator": model.evaluate(batches(), verbose=0),
        "generator_steps": model.evaluate(endless(), steps=3, verbose=0),
        "py_dataset": model.evaluate(Batches(), verbose=0),
        "one_row": model.evaluate(X[:1], Y[:1], verbose=0, return_dict=True),
        "many_steps": many.evaluate(data(rows=33, batch=8), verbose=0),
    }
    return dict(numbers(found))
