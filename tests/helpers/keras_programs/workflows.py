"""Metrics and callbacks, and whole programs: Keras' guides, transfer, saving and loading."""

# mypy: allow-subclassing-any

from __future__ import annotations

import os
import tempfile
from contextlib import nullcontext
from functools import partial
from pathlib import Path
from typing import Any, Callable, Dict, List, Tuple

import keras
from keras import callbacks as kc
from keras import layers, ops
from keras import metrics as km
from keras_programs.common import (
    BINARY,
    NUMBER,
    WEIGHT,
    Outcome,
    Program,
    Recorder,
    X,
    add,
    build,
    crossentropy,
    data,
    fitted,
    numbers,
    perceptron,
    program,
    ready,
    seen,
)

Make = Callable[[], Any]


# By kind: the number of outputs, their activation, the targets and the loss.
KINDS: Dict[str, Tuple[int, Any, Any, str]] = {
    "binary": (1, "sigmoid", BINARY, "binary_crossentropy"),
    "number": (1, "softplus", NUMBER, "mse"),
}

METRICS: Dict[str, Dict[str, List[Make]]] = {
    "binary": {
        "auc": [km.AUC, lambda: km.F1Score(threshold=0.5)],
    },
    "number": {
        "r2": [km.R2Score],
        "own_assign": [lambda: OwnSum()],
        "own_vector": [lambda: Histogram()],
    },
}


class OwnSum(km.Metric):
    """As the guide's metric: a variable to which the new sum is assigned."""

    def __init__(self, name: str = "own_sum") -> None:
        super().__init__(name=name)
        self.total = self.add_variable(shape=(), initializer="zeros", name="total")

    def update_state(self, y_true: Any, y_pred: Any, sample_weight: Any = None) -> None:
        values = ops.abs(y_true - y_pred)
        if sample_weight is not None:
            values = values[:, 0] * ops.cast(sample_weight, "float32")
        self.total.assign(self.total + ops.sum(values))

    def result(self) -> Any:
        return self.total.value


class Histogram(km.Metric):
    """A vector as its result, of which Keras logs the largest."""

    def __init__(self) -> None:
        super().__init__(name="histogram")
        self.counts = self.add_weight(shape=(4,), initializer="zeros", name="counts")

    def update_state(self, y_true: Any, y_pred: Any, sample_weight: Any = None) -> None:
        classes = ops.clip(ops.cast(y_true[:, 0], "int32"), 0, 3)
        self.counts.assign_add(ops.sum(ops.one_hot(classes, 4), axis=0))

    def result(self) -> Any:
        return {"few": ops.min(self.counts), "many": ops.max(self.counts)}


def _model(strategy: Any, kind: str, **how: Any) -> Tuple[Any, Any]:
    outputs, activation, y, loss = KINDS[kind]
    return build(strategy, outputs=outputs, activation=activation, loss=loss, **how), y


def _of(kind: str, metrics: List[Make], *weight: Any) -> Program:
    def program(strategy: Any) -> Outcome:
        where = {"weighted_metrics" if weight else "metrics": metrics}
        model, y = _model(strategy, kind, **{"metrics": None, **where})
        recorder, data_ = Recorder(), data(X, y, *weight)
        history = model.fit(
            data_, epochs=2, verbose=0, callbacks=[recorder], validation_data=data_.take(2)
        )
        batches = {"train": recorder.train, "test": recorder.test}
        return {"batches": batches, **seen(model, history, data_)}

    return program


for kind, by_name in METRICS.items():
    for name, metrics in by_name.items():
        add(f"metric_{name}", _of(kind, metrics))
for kind, name in [("binary", "auc"), ("number", "own_assign")]:
    add(f"metric_weighted_{name}", _of(kind, METRICS[kind][name], WEIGHT))


class Watching(keras.layers.Layer):
    """Tells a mean and a sum of what goes through it."""

    def __init__(self) -> None:
        super().__init__()
        self.mean, self.sum = km.Mean(name="watched_mean"), km.Sum(name="watched_sum")

    def call(self, inputs: Any) -> Any:
        self.mean.update_state(inputs)
        self.sum.update_state(inputs)
        return inputs


@program("metric")
def in_call_of_a_layer(strategy: Any) -> Outcome:
    return fitted(build(strategy, Watching), data())


class Reading(kc.Callback):
    """Reads the metrics, the variables and the learning rate after every batch."""

    def __init__(self) -> None:
        super().__init__()
        self.read: List[Any] = []

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        results = [metric.result() for metric in self.model.metrics]
        iterations = self.model.optimizer.iterations
        self.read += [numbers([results, iterations, self.model.trainable_variables[0]])]

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        self.read += [numbers(self.model.get_metrics_result())]
        self.read += [numbers(self.model.predict(X[:3], verbose=0))]


@program("callback")
def reading_metrics(strategy: Any) -> Outcome:
    reading = Reading()
    return {**fitted(build(strategy), data(), callbacks=[reading]), "read": reading.read}


def folder() -> Path:
    """One for every process: who writes what into a common one is not asked here."""
    return Path(tempfile.mkdtemp(dir=os.environ.get("TASK_OUTPUT"), prefix=f"saved{os.getpid()}_"))


GUIDES: Dict[str, Make] = {
    "unbuilt_sequential": lambda: keras.Sequential([layers.Dense(4, "relu"), layers.Dense(3)]),
    "synchronized_batch_normalization": lambda: perceptron(
        lambda: layers.BatchNormalization(momentum=0.9, synchronized=True)
    ),
}


def _guide(make: Make) -> Callable[[Any], Outcome]:
    return lambda strategy: fitted(ready(strategy, make), data(), predict=True)


for name, make in GUIDES.items():
    add(f"guide_{name}", _guide(make))


def _with(strategy: Any, layer: Make) -> Outcome:
    return fitted(build(strategy, layer), data())


RANDOM = "draws random numbers by row"
LAYERS: Dict[str, Tuple[Make, str]] = {
    "batch_normalization": (
        layers.BatchNormalization,
        "normalizes the rows of a batch by one another, of which a worker sees its part",
    ),
    "dropout": (lambda: layers.Dropout(0.3), RANDOM),
}
for name, (layer, reason) in LAYERS.items():
    add(f"guide_{name}", partial(_with, layer=layer), differs=reason)


@program("guide")
def lora(strategy: Any) -> Outcome:
    model = build(strategy)
    with strategy.scope():
        model.layers[1].enable_lora(2)
        model.compile("sgd", crossentropy())
    return fitted(model, data(), predict=True)


@program("guide", within=1e-2)
def quantized(strategy: Any) -> Outcome:
    model = build(strategy)
    model.fit(data(), verbose=0)
    model.quantize("int8")
    return {"predict": numbers(model.predict(X[:33], batch_size=8, verbose=0))}


def _saved(strategy: Any, scope: Callable[[Any], Any]) -> Outcome:
    model = build(strategy, optimizer=lambda: keras.optimizers.Adam(0.01))
    model.fit(data(), verbose=0)
    file = str(folder() / "model.keras")
    model.save(file)
    with scope(strategy):
        model = keras.models.load_model(file)
    return fitted(model, data(), predict=True)


add("guide_saved_and_loaded_inside", lambda strategy: _saved(strategy, lambda s: s.scope()))
add("guide_saved_and_loaded_outside", lambda strategy: _saved(strategy, lambda s: nullcontext()))


@program("guide")
def distributed_training(strategy: Any) -> Outcome:
    """As Keras' guide to distributed training: make or restore, with checkpoints, twice."""
    place = folder()

    def restored() -> Any:
        saved = sorted(str(file) for file in Path(place).glob("*.keras"))
        return keras.models.load_model(saved[-1]) if saved else started()

    def started() -> Any:
        model = perceptron()
        model.compile(keras.optimizers.Adam(0.01), crossentropy(), metrics=["accuracy"])
        return model

    keras.utils.set_random_seed(3)
    found: List[Outcome] = []
    save = keras.callbacks.ModelCheckpoint(str(place / "ckpt-{epoch}.keras"), save_freq="epoch")
    for _ in range(2):
        with strategy.scope():
            model = restored()
        model.fit(data(), epochs=1, callbacks=[save], verbose=0)
        with strategy.scope():
            found.append(seen(model, test=data()))
    return {"fits": found, "files": len(list(place.iterdir()))}
