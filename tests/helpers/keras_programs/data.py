"""Programs for all forms of data that Keras' methods accept, including single batches."""

# mypy: allow-subclassing-any

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import Any

import keras
import numpy as np
import tensorflow as tf
from keras import layers
from keras_programs.common import (
    BINARY,
    COLUMNS,
    WEIGHT,
    WEIGHTED_BY_ROWS,
    Outcome,
    X,
    Y,
    add_each,
    build,
    crossentropy,
    data,
    fitted,
    numbers,
    ready,
    seen,
)
from keras_programs.common import program as registered
from kinds import Action, Fields

NUMBERS = np.arange(120, dtype="float32")[:, None]


class Ids(keras.metrics.Sum):
    """Sums the squares of the row numbers, to show whether each row was seen exactly once."""

    def update_state(self, y_true: Any, y_pred: Any, sample_weight: Any = None) -> None:
        super().update_state(keras.ops.cast(y_true, "float32") ** 2)


def batches(weights: bool = False) -> Iterator[Any]:
    for start in range(0, 33, 8):
        end = min(33, start + 8)
        yield (X[start:end], Y[start:end], *([WEIGHT[start:end]] if weights else []))


def endless(weights: bool = False) -> Iterator[Any]:
    while True:
        yield from batches(weights)


class Batches(keras.utils.PyDataset):
    """The first rows in batches of 8; each epoch begins one batch later."""

    def __init__(self, **how: Any) -> None:
        super().__init__(**how)
        self.all = list(batches(weights=True))

    def __len__(self) -> int:
        return len(self.all)

    def __getitem__(self, index: int) -> Any:
        return self.all[index]

    def on_epoch_end(self) -> None:
        self.all = self.all[1:] + self.all[:1]


def arrays(strategy: Any, entry: Fields) -> Outcome:
    """Calls fit(x, y) without shuffling."""
    options: Fields = {
        "shuffle": False,
        "batch_size": 8,
        **entry,
    }
    rows = options.pop("rows", 33)
    model = build(strategy, weighted_metrics=["accuracy"])
    return fitted(
        model,
        X[:rows],
        y=Y[:rows],
        **options,
        test=data(rows=rows),
        predict=True,
    )


ARRAYS: dict[str, Fields] = {
    "batches_of_1": {"rows": 7, "batch_size": 1},
    "weighted_validation_split": {"sample_weight": WEIGHT[:33], "validation_split": 0.2},
    "validation_data": {
        "validation_data": (X[:33], Y[:33], WEIGHT[:33]),
        "validation_freq": 2,
    },
}
add_each("data_arrays", arrays, ARRAYS)


def records() -> Any:
    """Returns a dataset that reads a file written by this process."""
    file = f"rows{os.getpid()}.tfrecord"
    with tf.io.TFRecordWriter(file) as writer:
        for row in range(33):
            writer.write(tf.io.serialize_tensor(X[row]).numpy())
    rows = tf.data.TFRecordDataset([file]).map(
        lambda row: tf.ensure_shape(
            tf.io.parse_tensor(row, tf.float32),
            [COLUMNS],
        )
    )
    return rows.map(
        lambda x: (
            x,
            tf.cast(
                x[0] > 0,
                tf.int32,
            ),
        )
    ).batch(8)


# The programs fit data from these sources, and evaluate plain data.
SOURCES: dict[str, tuple[Action, Fields]] = {
    "dataset_filtered": (lambda: data().unbatch().filter(lambda x, y: y != 1).batch(8), {}),
    "dataset_records": (records, {}),
    "generator": (lambda: batches(weights=True), {"epochs": 1}),
    "generator_endless": (lambda: endless(weights=True), {"steps_per_epoch": 7}),
    "py_dataset": (lambda: Batches(workers=2), {"shuffle": False}),
    "py_dataset_processes": (
        lambda: Batches(workers=2, use_multiprocessing=True),
        {"shuffle": False},
    ),
}


def _on(strategy: Any, entry: tuple[Action, Fields]) -> Outcome:
    source, how = entry
    model = build(strategy, weighted_metrics=["accuracy"])
    return fitted(
        model,
        source(),
        test=data(),
        predict=True,
        **how,
    )


add_each("data", _on, SOURCES)


@registered("data")
def shuffled_fit(strategy: Any) -> Outcome:
    """Without seeds, the rows are shuffled, but each epoch sees every row exactly once."""
    found = []
    rows = data(X, NUMBERS, rows=120).unbatch()
    for how in (
        {
            "x": X,
            "y": NUMBERS,
            "batch_size": 24,
        },
        {"x": rows.shuffle(50).batch(24)},
    ):
        with strategy.scope():
            model = keras.Sequential(
                [
                    keras.Input((COLUMNS,)),
                    layers.Dense(1),
                ]
            )
            model.compile("adam", "mse", metrics=[Ids(name="ids")])
        found.append(model.fit(**how, epochs=2, verbose=0).history["ids"])
    return {"ids": numbers(found)}


def joined(sparse: bool) -> Any:
    """Returns a model with two inputs and two outputs."""
    left = keras.Input((3,), name="left", sparse=sparse)
    right = keras.Input((3,), name="right")
    hidden = layers.Concatenate()(
        [
            layers.Dense(4)(left),
            layers.Dense(2)(right),
        ]
    )
    label = layers.Dense(3, name="label")(hidden)
    yes = layers.Dense(1, name="yes")(hidden)
    return keras.Model(
        [left, right],
        [label, yes],
    )


def _joined(strategy: Any, sparse: bool) -> Any:
    losses = [crossentropy, "mse"]
    return ready(
        strategy,
        lambda: joined(sparse),
        loss=losses,
        metrics=[["accuracy"], []],
    )


@registered("data", differs=WEIGHTED_BY_ROWS)
def dict_inputs(strategy: Any) -> Outcome:
    columns = (
        {
            "left": X[:33, :3],
            "right": X[:33, 3:],
        },
        (Y[:33], BINARY[:33]),
    )
    # The workers divide the rows before the map.
    rows = tf.data.Dataset.from_tensor_slices(columns).map(lambda x, y: (x, y))
    return fitted(
        _joined(strategy, sparse=False),
        rows.batch(8),
        predict=True,
    )


@registered("data", differs=WEIGHTED_BY_ROWS)
def sparse_inputs(strategy: Any) -> Outcome:
    model = _joined(strategy, sparse=True)
    sparse = data(
        (X[:, :3], X[:, 3:]),
        (Y, BINARY),
    ).map(lambda x, y: ((tf.sparse.from_dense(tf.nn.relu(x[0])), x[1]), y))
    return fitted(model, sparse)


class SumOfRow(keras.Model):
    def __init__(self) -> None:
        super().__init__()
        self.dense = layers.Dense(3)

    def call(self, rows: Any) -> Any:
        return self.dense(
            tf.reshape(
                tf.reduce_sum(rows, axis=1),
                (-1, 1),
            )
        )


@registered("data")
def texts(strategy: Any) -> Outcome:
    """Splits texts into words in the model; some texts have more than the model takes."""
    texts = tf.strings.reduce_join(tf.strings.as_string(tf.cast(9 * X, tf.int32)), 1, separator=" ")
    split = layers.TextVectorization(output_sequence_length=3)
    split.adapt(texts)
    model = ready(
        strategy,
        lambda: keras.Sequential(
            [
                keras.Input((), dtype="string"),
                split,
                layers.Embedding(40, 4, mask_zero=True),
                layers.GlobalAveragePooling1D(),
                layers.Dense(3, activation="softmax"),
            ]
        ),
    )
    return fitted(model, data(texts, Y), predict=True)


@registered("data")
def ragged(strategy: Any) -> Outcome:
    rows = tf.RaggedTensor.from_row_lengths(
        X.flatten()[:300],
        [1 + row % 4 for row in range(120)],
    )
    model = ready(strategy, SumOfRow, metrics=["accuracy"])
    return fitted(model, data(rows, Y), predict=True)


class SumOfSparseRow(SumOfRow):
    def call(self, rows: Any) -> Any:
        return super().call(tf.sparse.to_dense(rows))


@registered("data")
def sparse_widths(strategy: Any) -> Outcome:
    """Trains on sparse batches of different widths."""
    rows = tf.RaggedTensor.from_row_lengths(
        X.flatten()[:300], [1 + row // 30 for row in range(120)]
    )
    sparse = data(rows, Y).map(lambda x, y: (x.to_sparse(), y))
    return fitted(
        ready(strategy, SumOfSparseRow, metrics=["accuracy"]),
        sparse,
    )


def called(calls: str, **models: Any) -> Outcome:
    """Returns the result of each call by its text."""
    names = {**globals(), **models}
    return {call: eval(call, names) for call in calls.strip().splitlines()}


# Some of these rows cannot be shared equally by three workers.
ON_BATCH = """
model.train_on_batch(X[:24], Y[:24])
model.train_on_batch(X[:7], Y[:7], sample_weight=WEIGHT[:7], return_dict=True)
model.train_on_batch(X[:24], Y[:24], class_weight={0: 1.0, 1: 2.0, 2: 0.5})
model.test_on_batch(X[:24], Y[:24])
model.test_on_batch(X[:1], Y[:1], WEIGHT[:1])
model.predict_on_batch(X[:24])
model.predict_on_batch(X[:1])
"""
PREDICTIONS = """
model.predict(X[:33], batch_size=8, verbose=0)
model.predict(X[:1], verbose=0)
model.predict(inputs.batch(8), verbose=0)
model.predict(inputs.repeat().batch(8), steps=3, verbose=0)
model.predict(((x,) for x, y in batches()), verbose=0)
many.predict(X[:33], batch_size=8, verbose=0)
many.predict(X[:100], batch_size=2, verbose=0)
model(X[:5])
"""
EVALUATIONS = """
model.evaluate(X[:33], Y[:33], 8, 0, sample_weight=WEIGHT[:33])
model.evaluate(data(batch=8).repeat(), steps=5, verbose=0)
model.evaluate(endless(), steps=3, verbose=0)
model.evaluate(X[:1], Y[:1], verbose=0, return_dict=True)
many.evaluate(data(), verbose=0)
"""


@registered("data")
def on_batch(strategy: Any) -> Outcome:
    model = build(strategy, weighted_metrics=["accuracy"])
    found = called(ON_BATCH, model=model)
    return {**numbers(found), **seen(model)}


@registered("data")
def predictions(strategy: Any) -> Outcome:
    found = called(
        PREDICTIONS,
        model=build(strategy),
        many=build(strategy, steps_per_execution=50),
        inputs=tf.data.Dataset.from_tensor_slices(X[:33]),
    )
    shapes = {call: list(value.shape) for call, value in found.items()}
    return {"shapes": shapes, **numbers(found)}


@registered("data")
def evaluations(strategy: Any) -> Outcome:
    found = called(
        EVALUATIONS,
        model=build(strategy, weighted_metrics=["accuracy"]),
        many=build(strategy, steps_per_execution=4),
    )
    return dict(numbers(found))
