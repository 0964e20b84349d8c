"""Metrics of Keras and of one's own, by epoch and by batch, and callbacks."""

# mypy: allow-subclassing-any

from __future__ import annotations

from functools import partial
from typing import Any, Callable, Dict, List, Tuple

import keras
from keras import metrics as km
from keras import ops
from keras_programs.common import (
    BINARY,
    COLUMNS,
    EVEN,
    NUMBER,
    ONE_HOT,
    UNEVEN,
    WEIGHT,
    Outcome,
    Program,
    Recorder,
    X,
    Y,
    add,
    build,
    crossentropy,
    data,
    fitted,
    perceptron,
    program,
    ready,
    seen,
)

Make = Callable[[], Any]

# By kind: the number of outputs, their activation, the targets and the loss.
KINDS: Dict[str, Tuple[int, Any, Any, str]] = {
    "binary": (1, "sigmoid", BINARY, "binary_crossentropy"),
    "one_hot": (3, "softmax", ONE_HOT, "categorical_crossentropy"),
    "label": (3, "softmax", Y, "sparse_categorical_crossentropy"),
    "number": (1, "softplus", NUMBER, "mse"),
}

METRICS: Dict[str, Dict[str, List[Make]]] = {
    "binary": {
        "auc": [km.AUC, lambda: km.AUC(num_thresholds=20, curve="PR", name="auc_pr")],
        "counts": [km.TruePositives, km.TrueNegatives, km.FalsePositives, km.FalseNegatives],
    },
    "one_hot": {
        "f1": [km.F1Score, lambda: km.F1Score("macro", name="f1_macro")],
    },
    "label": {
        "sparse_accuracy": [lambda: "accuracy", km.SparseCategoricalAccuracy],
        "mean_iou": [lambda: km.MeanIoU(3, sparse_y_pred=False)],
    },
    "number": {
        "mse": [km.MeanSquaredError, km.RootMeanSquaredError],
        "r2": [km.R2Score],
        "function_per_row": [lambda: per_row],
        "function_scalar": [lambda: scalar],
        "own_assign": [lambda: OwnSum()],
        "own_assign_add": [lambda: OwnMean()],
        "own_reset": [lambda: OwnReset()],
        "own_largest": [lambda: Largest()],
        "own_vector": [lambda: Histogram()],
        "own_rms": [lambda: OwnRms()],
        "own_mean": [lambda: OfMean()],
    },
}


def per_row(y_true: Any, y_pred: Any) -> Any:
    return ops.abs(y_true - y_pred)[:, 0]


def scalar(y_true: Any, y_pred: Any) -> Any:
    return ops.mean(ops.square(y_true - y_pred))


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


class OwnMean(OwnSum):
    def __init__(self, name: str = "own_mean") -> None:
        super().__init__(name=name)
        self.count = self.add_weight(shape=(), initializer="zeros", name="count", dtype="int32")

    def update_state(self, y_true: Any, y_pred: Any, sample_weight: Any = None) -> None:
        self.total.assign_add(ops.sum(ops.abs(y_true - y_pred)))
        self.count.assign_add(ops.shape(y_true)[0])

    def result(self) -> Any:
        return self.total / (ops.cast(self.count, "float32") + 1e-7)


class OwnReset(OwnMean):
    """Keeps its count for good."""

    def __init__(self) -> None:
        super().__init__("own_reset")

    def reset_state(self) -> None:
        self.total.assign(0.5)


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


class OfMean(km.Mean):
    """Hands a scalar to a Mean."""

    def __init__(self) -> None:
        super().__init__(name="of_mean")

    def update_state(self, y_true: Any, y_pred: Any, sample_weight: Any = None) -> Any:
        return super().update_state(ops.mean(y_pred))


def _model(strategy: Any, kind: str, **how: Any) -> Tuple[Any, Any]:
    outputs, activation, y, loss = KINDS[kind]
    return build(strategy, outputs=outputs, activation=activation, loss=loss, **how), y


def _of(kind: str, metrics: List[Make], size: Dict[str, int], *weight: Any) -> Program:
    def program(strategy: Any) -> Outcome:
        where = {"weighted_metrics" if weight else "metrics": metrics}
        model, y = _model(strategy, kind, **{"metrics": None, **where})
        recorder, data_ = Recorder(), data(X, y, *weight, **size)
        history = model.fit(
            data_, epochs=2, verbose=0, callbacks=[recorder], validation_data=data_.take(2)
        )
        batches = {"train": recorder.train, "test": recorder.test}
        return {"batches": batches, **seen(model, history, data_)}

    return program


for kind, by_name in METRICS.items():
    for name, metrics in by_name.items():
        add(f"metric_{name}", _of(kind, metrics, EVEN))
        add(f"metric_{name}_33", _of(kind, metrics, UNEVEN))
for kind, name in [
    ("binary", "auc"),
    ("one_hot", "f1"),
    ("label", "sparse_accuracy"),
    ("label", "mean_iou"),
    ("number", "mse"),
    ("number", "r2"),
    ("number", "function_per_row"),
    ("number", "own_assign"),
]:
    add(f"metric_weighted_{name}", _of(kind, METRICS[kind][name], UNEVEN, WEIGHT))


class Watching(keras.layers.Layer):
    """Tells a mean and a sum of what goes through it."""

    def __init__(self) -> None:
        super().__init__()
        self.mean, self.sum = km.Mean(name="watched_mean"), km.Sum(name="watched_sum")

    def call(self, inputs: Any) -> Any:
        self.mean.update_state(inputs)
        self.sum.update_state(inputs)
        return inputs


class WatchingModel(keras.Model):
    def __init__(self) -> None:
        super().__init__()
        self.inner, self.mean = perceptron(Watching), km.Mean(name="outputs")

    def call(self, inputs: Any) -> Any:
        outputs = self.inner(inputs)
        self.mean.update_state(ops.mean(outputs))
        return outputs


def _watched(strategy: Any, make: Make, **size: int) -> Outcome:
    return fitted(ready(strategy, make, metrics=["accuracy"]), data(**size))


for name, make in {"layer": lambda: perceptron(Watching), "model": WatchingModel}.items():
    add(f"metric_in_call_of_a_{name}", partial(_watched, make=make))
    add(f"metric_in_call_of_a_{name}_33", partial(_watched, make=make, **UNEVEN))


@program("metric")
def by_output(strategy: Any) -> Outcome:
    def make() -> Any:
        inputs = keras.Input((COLUMNS,))
        label, number = keras.layers.Dense(3, name="label"), keras.layers.Dense(1, name="number")
        return keras.Model(inputs, [label(inputs), number(inputs)])

    model = ready(
        strategy,
        make,
        loss=[crossentropy, "mse"],
        metrics=[["accuracy"], [km.R2Score, OwnMean]],
        weighted_metrics=[[], ["mae"]],
    )
    return fitted(model, data(X, (Y, NUMBER), rows=33, batch=8))
