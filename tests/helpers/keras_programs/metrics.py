"""Metrics of Keras and of one's own, by epoch and by batch, and callbacks."""

# mypy: allow-subclassing-any

from __future__ import annotations

from typing import Any, Callable, Dict, List, Tuple

import keras
from keras import metrics as km
from keras import ops
from keras_programs.common import (
    BINARY,
    NUMBER,
    WEIGHT,
    Outcome,
    Program,
    Recorder,
    X,
    Y,
    add,
    build,
    data,
    fitted,
    program,
    seen,
)

Make = Callable[[], Any]

# By kind: the number of outputs, their activation, the targets and the loss.
KINDS: Dict[str, Tuple[int, Any, Any, str]] = {
    "binary": (1, "sigmoid", BINARY, "binary_crossentropy"),
    "label": (3, "softmax", Y, "sparse_categorical_crossentropy"),
    "number": (1, "softplus", NUMBER, "mse"),
}

METRICS: Dict[str, Dict[str, List[Make]]] = {
    "binary": {
        "auc": [km.AUC, km.TruePositives],
    },
    "label": {
        "mean_iou": [lambda: "accuracy", lambda: km.MeanIoU(3, sparse_y_pred=False)],
    },
    "number": {
        "r2": [km.R2Score],
        "function_per_row": [lambda: per_row],
        "own_assign": [lambda: OwnSum()],
        "own_largest": [lambda: Largest()],
        "own_vector": [lambda: Histogram()],
        "own_rms": [lambda: OwnRms()],
    },
}


def per_row(y_true: Any, y_pred: Any) -> Any:
    return ops.abs(y_true - y_pred)[:, 0]


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


class Largest(OwnSum):
    """No sum at all."""

    def __init__(self) -> None:
        super().__init__("largest")

    def update_state(self, y_true: Any, y_pred: Any, sample_weight: Any = None) -> None:
        self.total.assign(ops.maximum(self.total, ops.max(ops.abs(y_true - y_pred))))


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


class OwnRms(km.Mean):
    """Extends a Mean, and takes its root."""

    def __init__(self) -> None:
        super().__init__(name="own_rms")

    def update_state(self, y_true: Any, y_pred: Any, sample_weight: Any = None) -> Any:
        return super().update_state(ops.square(y_true - y_pred), sample_weight=sample_weight)

    def result(self) -> Any:
        return ops.sqrt(super().result())


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
for kind, name in [("binary", "auc"), ("number", "r2"), ("number", "own_assign")]:
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
