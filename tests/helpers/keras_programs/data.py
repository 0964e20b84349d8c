"""Ways to hand data to fit, evaluate and predict."""

# mypy: allow-subclassing-any

from __future__ import annotations

import csv
import os
import tempfile
from functools import partial
from pathlib import Path
from typing import Any, Callable, Dict, Iterator, Tuple

import keras
import numpy as np
import tensorflow as tf
from keras import layers
from keras_programs.common import (
    COLUMNS,
    WEIGHT,
    Outcome,
    X,
    Y,
    add,
    build,
    data,
    fitted,
    numbers,
    seen,
)
from keras_programs.common import program as registered

Source = Callable[[], Any]
NUMBERS = np.arange(120, dtype="float32")[:, None]


class Ids(keras.metrics.Metric):
    """The sum of the rows' numbers, or of their squares: has each row been seen just once?"""

    def __init__(self, power: int) -> None:
        super().__init__(name=f"ids{power}")
        self.power = power
        self.total = self.add_weight(shape=(), initializer="zeros", name="total")

    def update_state(self, y_true: Any, y_pred: Any, sample_weight: Any = None) -> None:
        self.total.assign_add(keras.ops.sum(keras.ops.cast(y_true, "float32") ** self.power))

    def result(self) -> Any:
        return self.total.value


def batches(rows: int = 33, batch: int = 8, weights: bool = False) -> Iterator[Any]:
    for start in range(0, rows, batch):
        end = min(rows, start + batch)
        yield (X[start:end], Y[start:end], *([WEIGHT[start:end]] if weights else []))


def endless(rows: int = 120, batch: int = 24, weights: bool = False) -> Iterator[Any]:
    while True:
        yield from batches(rows, batch, weights)


class Batches(keras.utils.PyDataset):
    """The first rows in batches of 8; with a hook, the next epoch's begin one row later."""

    def __init__(
        self,
        rows: int = 33,
        weights: bool = False,
        moves: bool = False,
        numbered: bool = False,
        **how: Any,
    ) -> None:
        super().__init__(**how)
        self.all = list(batches(rows, weights=weights))
        if numbered:
            self.all = [(X[i:rows][:8], NUMBERS[i:rows][:8]) for i in range(0, rows, 8)]
        self.moves = moves

    def __len__(self) -> int:
        return len(self.all)

    def __getitem__(self, index: int) -> Any:
        return self.all[index]

    def on_epoch_end(self) -> None:
        if self.moves:
            self.all = self.all[1:] + self.all[:1]


def arrays(**how: Any) -> Callable[[Any], Outcome]:
    """fit(x, y) in the order of the rows."""

    def program(strategy: Any) -> Outcome:
        given = dict(how)
        rows = given.pop("rows", 120)
        options = {"shuffle": False, "batch_size": 24, **given}
        if options.pop("weighted", False):
            options["sample_weight"] = WEIGHT[:rows]
        model = build(strategy, weighted_metrics=["accuracy"])
        return fitted(model, X[:rows], y=Y[:rows], **options, test=data(rows=rows), predict=True)

    return program


SHORT = (X[:33], Y[:33], WEIGHT[:33])
ARRAYS: Dict[str, Dict[str, Any]] = {
    "plain": {},
    "last_of_1": {"rows": 33, "batch_size": 8},
    "batches_of_1": {"rows": 7, "batch_size": 1},
    "weighted_last_of_1": {"rows": 33, "batch_size": 8, "weighted": True},
    "validation_split": {"validation_split": 0.2},
    "validation_data_of_33": {
        "validation_data": SHORT,
        "validation_batch_size": 8,
        "weighted": True,
    },
    "validation_freq": {"validation_data": SHORT[:2], "validation_freq": 2, "epochs": 3},
    "class_weight": {"class_weight": {0: 1.0, 1: 0.2, 2: 3.0}},
}
for name, how in ARRAYS.items():
    add(f"data_arrays_{name}", arrays(**how))


def written(write: Callable[[Path], None]) -> str:
    """A folder with files that every process has written for itself."""
    folder = tempfile.mkdtemp(dir=os.environ.get("TASK_OUTPUT"), prefix=f"data{os.getpid()}_")
    write(Path(folder))
    return folder


def records(files: int) -> Any:
    def write(folder: Path) -> None:
        for file in range(files):
            with tf.io.TFRecordWriter(str(folder / f"{file}.tfrecord")) as writer:
                for row in range(file * 48 // files, (file + 1) * 48 // files):
                    floats = tf.train.Feature(float_list=tf.train.FloatList(value=X[row]))
                    label = tf.train.Feature(int64_list=tf.train.Int64List(value=[Y[row]]))
                    features = tf.train.Features(feature={"x": floats, "y": label})
                    example = tf.train.Example(features=features)
                    writer.write(example.SerializeToString())

    def parsed(example: Any) -> Any:
        shape = {
            "x": tf.io.FixedLenFeature([COLUMNS], tf.float32),
            "y": tf.io.FixedLenFeature([], tf.int64),
        }
        row = tf.io.parse_single_example(example, shape)
        return row["x"], row["y"]

    names = sorted(str(file) for file in Path(written(write)).iterdir())
    return tf.data.TFRecordDataset(names).map(parsed).batch(8)


def csv_rows() -> Any:
    names = [f"c{column}" for column in range(COLUMNS)]

    def write(folder: Path) -> None:
        with open(folder / "rows.csv", "w", newline="") as file:
            csv.writer(file).writerows([[*names, "label"], *([*x, y] for x, y in zip(X[:48], Y))])

    rows = tf.data.experimental.make_csv_dataset(
        str(Path(written(write), "rows.csv")), 8, label_name="label", num_epochs=1, shuffle=False
    )
    return rows.map(lambda row, y: (tf.stack([row[name] for name in names], axis=1), y))


# Programs that fit and evaluate what these make, two epochs.
DATASETS: Dict[str, Source] = {
    "plain": data,
    "last_dropped": lambda: data(rows=33).unbatch().batch(8, drop_remainder=True),
    "filtered": lambda: data().unbatch().filter(lambda x, y: y != 1).batch(8),
    "from_generator": lambda: tf.data.Dataset.from_generator(
        batches,
        output_signature=(
            tf.TensorSpec((None, COLUMNS), tf.float32),
            tf.TensorSpec((None,), tf.int32),
        ),
    ),
    "records_in_1_file": lambda: records(1),
    "records_in_4_files": lambda: records(4),
    "csv": csv_rows,
    "batches_of_unequal_size": lambda: data(rows=10, batch=4).concatenate(data(rows=33)),
    "timeseries": lambda: keras.utils.timeseries_dataset_from_array(
        X[:, 0], Y[COLUMNS:], COLUMNS, batch_size=24
    ),
}


@registered("data", differs="each worker has data of its own, here as much as one process")
def auto_shard_off(strategy: Any) -> Outcome:
    options = tf.data.Options()
    options.experimental_distribute.auto_shard_policy = tf.data.experimental.AutoShardPolicy.OFF
    return fitted(build(strategy), data().with_options(options), predict=True)


# Programs that fit what these make, and evaluate the plain dataset.
SOURCES: Dict[str, Source] = {
    "generator": batches,
    "generator_weighted": lambda: batches(weights=True),
    "py_dataset": Batches,
    "py_dataset_weighted": lambda: Batches(weights=True),
    "py_dataset_two_threads": lambda: Batches(workers=2),
    "py_dataset_two_processes": lambda: Batches(workers=2, use_multiprocessing=True),
    "py_dataset_moving": lambda: Batches(moves=True),
}


def _of(source: Source, **how: Any) -> Callable[[Any], Outcome]:
    """The dataset is made after the model, once."""
    how.setdefault("epochs", 2)
    return lambda strategy: fitted(
        build(strategy, weighted_metrics=["accuracy"]), source(), test=how.get("test"), **how
    )


def _on(source: Source, **how: Any) -> Callable[[Any], Outcome]:
    def program(strategy: Any) -> Outcome:
        model = build(strategy, weighted_metrics=["accuracy"])
        return fitted(model, source(), test=data(rows=33), predict=True, **how)

    return program


for name, source in DATASETS.items():
    add(f"data_dataset_{name}", _of(source, predict=True))
for name, source in SOURCES.items():
    add(f"data_{name}", _on(source, epochs=1 if "generator" in name else 2, shuffle=False))
for name, source, steps in [
    ("dataset_steps_per_epoch", lambda: data().repeat(), 4),
    ("dataset_endless", lambda: data(rows=33, batch=8).repeat(), 7),
    ("dataset_too_short", lambda: data(batch=24), 2),
    ("generator_endless", endless, 4),
    ("generator_endless_weighted", lambda: endless(rows=33, batch=8, weights=True), 7),
    ("generator_endless_one_step", endless, 1),
]:
    add(f"data_{name}", _on(source, steps_per_epoch=steps, epochs=2))


def unseeded(strategy: Any, sums: bool, source: Source, **how: Any) -> Outcome:
    """Nothing is seeded here: rows are shuffled, but each is to be seen just once."""
    with strategy.scope():
        model = keras.Sequential([keras.Input((COLUMNS,)), layers.Dense(1)])
        model.compile("adam", "mse", metrics=[Ids(1), Ids(2)])
    history = model.fit(source(), epochs=2, verbose=0, **how)
    if not sums:
        return seen(model, history)
    kept = {name: values for name, values in history.history.items() if "ids" in name}
    return {"history": numbers(kept)}


OTHERS = "starts from other weights and takes the rows in another order"
SHUFFLED: Dict[str, Tuple[Source, Dict[str, Any]]] = {
    "fit": (lambda: X, {"y": NUMBERS, "batch_size": 24}),
    "py_dataset": (lambda: Batches(numbered=True), {"shuffle": True}),
    "dataset": (lambda: data(X, NUMBERS).unbatch().shuffle(50).batch(24), {}),
}
for name, (source, how) in SHUFFLED.items():
    sums, weights = (partial(unseeded, sums=sums, source=source, **how) for sums in (True, False))
    add(f"data_shuffled_{name}", sums)
    add(f"data_shuffled_{name}_weights", weights, differs=OTHERS)
