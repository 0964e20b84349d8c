"""Losses: every class of Keras, functions and classes of one's own, add_loss, regularizers."""

# mypy: allow-subclassing-any

from __future__ import annotations

from typing import Any, Callable, Dict, Optional, Tuple

import keras
import numpy as np
from keras import layers, ops
from keras import losses as kl
from keras_programs.common import (
    COLUMNS,
    EVEN,
    NUMBER,
    PADDED,
    TOKENS,
    UNEVEN,
    WEIGHT,
    Outcome,
    X,
    Y,
    add,
    crossentropy,
    data,
    fitted,
    perceptron,
    ready,
)

Make = Callable[[], Any]


def tagger(mask_zero: bool = True, last: Optional[Make] = None) -> Any:
    """A label for every token."""
    tokens = keras.Input((COLUMNS,), dtype="int32")
    hidden = layers.Embedding(9, 4, mask_zero=mask_zero)(tokens)
    hidden = layers.LSTM(4, return_sequences=True)(hidden)
    return keras.Model(tokens, layers.TimeDistributed(last() if last else layers.Dense(3))(hidden))


# By kind: the model, its inputs, its targets.
KINDS: Dict[str, Tuple[Make, Any, Any]] = {
    "label": (perceptron, X, Y),
    "number": (lambda: perceptron(outputs=1, activation="softplus"), X, NUMBER),
    "embedding": (lambda: perceptron(layers.UnitNormalization, activation="tanh"), X, Y),
    "picture": (
        lambda: keras.Sequential([perceptron(outputs=6, activation="sigmoid"), Reshape()]),
        X,
        (X > 0).astype("float32").reshape(-1, 2, 3),
    ),
    "speech": (
        lambda: keras.Sequential([keras.Input((6, 1)), layers.LSTM(4, return_sequences=True)]),
        X[..., None],
        np.where(PADDED[:, :2] > 0, PADDED[:, :2] % 3 + 1, 0),
    ),
    "tokens": (tagger, PADDED, TOKENS % 3),
    "unmasked": (lambda: tagger(mask_zero=False), PADDED, np.where(PADDED > 0, TOKENS % 3, -1)),
    "unmasked_as_many": (lambda: tagger(False), TOKENS, np.where(np.arange(6) < 4, TOKENS % 3, -1)),
}


def Reshape() -> Any:  # noqa: N802
    return layers.Reshape((2, 3))


def per_row(y_true: Any, y_pred: Any) -> Any:
    return ops.mean(ops.square(y_true - y_pred), axis=-1)


class PerRow(kl.Loss):
    def call(self, y_true: Any, y_pred: Any) -> Any:
        return per_row(y_true, y_pred)


class Scalar(kl.Loss):
    def call(self, y_true: Any, y_pred: Any) -> Any:
        return ops.mean(per_row(y_true, y_pred))


def masked_mean(y_true: Any, y_pred: Any) -> Any:
    """The mean of the valid tokens, as tutorials on translation count them."""
    valid = ops.cast(y_true >= 0, "float32")
    loss = keras.ops.sparse_categorical_crossentropy(ops.maximum(y_true, 0), y_pred, True)
    return ops.sum(loss * valid) / ops.sum(valid)


LOSSES: Dict[str, Tuple[str, Make]] = {
    "sparse_categorical": ("label", crossentropy),
    "circle": ("embedding", kl.Circle),
    "dice": ("picture", kl.Dice),
    "tversky": ("picture", kl.Tversky),
    "ctc": ("speech", kl.CTC),
    "by_name": ("number", lambda: "mse"),
    "reduction_sum": ("number", lambda: kl.MeanSquaredError(reduction="sum")),
    "reduction_none": ("number", lambda: kl.MeanSquaredError(reduction=None)),
    "reduction_mean": ("number", lambda: kl.MeanSquaredError(reduction="mean")),
    "function_per_row": ("number", lambda: per_row),
    "function_mean": ("number", lambda: lambda y, p: ops.mean(ops.square(y - p))),
    "function_sum": ("number", lambda: lambda y, p: 0.1 * ops.sum(ops.square(y - p))),
    "class_per_row": ("number", PerRow),
    "class_per_row_sum": ("number", lambda: PerRow(reduction="sum")),
    "class_scalar": ("number", Scalar),
    "masked_sequences": ("tokens", crossentropy),
    "masked_sequences_sum": ("tokens", lambda: crossentropy(reduction="sum")),
    "ignore_class": ("unmasked", lambda: crossentropy(ignore_class=-1)),
    "own_count_of_tokens": ("unmasked", lambda: masked_mean),
    "own_count_of_as_many_tokens": ("unmasked_as_many", lambda: masked_mean),
}

WEIGHTED: Dict[str, Tuple[str, Make]] = {
    "mse": ("number", kl.MeanSquaredError),
    "mse_sum": ("number", lambda: kl.MeanSquaredError(reduction="sum")),
    "mse_by_weight": ("number", lambda: kl.MeanSquaredError(reduction="mean_with_sample_weight")),
    "crossentropy_by_weight": ("label", lambda: crossentropy(reduction="mean_with_sample_weight")),
    "function_per_row": ("number", lambda: per_row),
    "class_per_row": ("number", PerRow),
    "masked_sequences": ("tokens", crossentropy),
}


def _of(kind: str, loss: Make, size: Dict[str, int], *weight: Any) -> Callable[[Any], Outcome]:
    def program(strategy: Any) -> Outcome:
        make, x, y = KINDS[kind]
        tokens = kind == "tokens"  # every token has a weight, that of its row
        weights = [given[:, None].repeat(COLUMNS, axis=1) if tokens else given for given in weight]
        metrics = ["mae"] if y.dtype == "float32" else None
        return fitted(
            ready(strategy, make, loss=loss, metrics=metrics), data(x, y, *weights, **size)
        )

    return program


for ending, size in [("", EVEN), ("_33", UNEVEN)]:
    for name, (kind, loss) in LOSSES.items():
        add(f"loss_{name}{ending}", _of(kind, loss, size))
    for name, (kind, loss) in WEIGHTED.items():
        add(f"loss_weighted_{name}{ending}", _of(kind, loss, size, WEIGHT))


class Penalty(layers.Layer):
    """Adds a loss of its input."""

    def __init__(self, penalty: Callable[[Any], Any]) -> None:
        super().__init__()
        self.penalty = penalty

    def call(self, inputs: Any) -> Any:
        self.add_loss(self.penalty(inputs))
        return inputs


class PenaltyModel(keras.Model):
    """Adds a loss in a model's own call()."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = perceptron()

    def call(self, inputs: Any) -> Any:
        outputs = self.inner(inputs)
        self.add_loss(0.1 * ops.mean(ops.square(outputs)))
        return outputs


class OwnLoss(keras.Model):
    """Overrides compute_loss(), with a tracker of its own."""

    def __init__(self, *args: Any, **how: Any) -> None:
        super().__init__(*args, **how)
        self.own_tracker = keras.metrics.Mean(name="own_loss")

    def compute_loss(
        self, x: Any = None, y: Any = None, y_pred: Any = None, sample_weight: Any = None, **_: Any
    ) -> Any:
        loss = ops.mean((y_pred - ops.one_hot(y, 3)) ** 2) + sum(self.losses)
        self.own_tracker.update_state(loss)
        return loss


class ScaledLoss(keras.Model):
    """Overrides compute_loss() around Keras' own."""

    def compute_loss(self, *args: Any, **how: Any) -> Any:
        return 0.5 * super().compute_loss(*args, **how)


def _penalized(penalty: Callable[[Any], Any]) -> Make:
    return lambda: perceptron(lambda: Penalty(penalty))


def two_outputs() -> Any:
    inputs = keras.Input((COLUMNS,))
    hidden = layers.Dense(6, activation="relu")(inputs)
    label, number = layers.Dense(3, name="label")(hidden), layers.Dense(1, name="number")(hidden)
    return keras.Model(inputs, {"label": label, "number": number})


ADDED: Dict[str, Make] = {
    "added_mean": _penalized(lambda x: 0.1 * ops.mean(ops.square(x))),
    "added_sum": _penalized(lambda x: 0.01 * ops.sum(ops.square(x))),
    "added_vector": _penalized(lambda x: 0.01 * ops.sum(ops.square(x), axis=-1)),
    "added_in_model": PenaltyModel,
    "added_of_weights": lambda: perceptron(kernel_regularizer="l2"),
    "activity_regularizer": lambda: perceptron(activity_regularizer=keras.regularizers.L2(0.05)),
    "compute_loss": lambda: perceptron(kind=OwnLoss, kernel_regularizer="l2"),
    "compute_loss_scaled": lambda: perceptron(kind=ScaledLoss),
}


def _added(make: Make, size: Dict[str, int]) -> Callable[[Any], Outcome]:
    return lambda strategy: fitted(ready(strategy, make, metrics=["accuracy"]), data(**size))


def _two(weights: Any, losses: Any, size: Dict[str, int]) -> Callable[[Any], Outcome]:
    target = {"label": Y, "number": NUMBER}
    return lambda strategy: fitted(
        ready(strategy, two_outputs, loss=losses, loss_weights=weights, metrics={"label": ["acc"]}),
        data(X, target, **size),
        predict=True,
    )


for ending, size in [("", EVEN), ("_33", UNEVEN)]:
    for name, make in ADDED.items():
        add(f"loss_{name}{ending}", _added(make, size))
    both = {"label": crossentropy, "number": "mse"}
    add(f"loss_two_outputs{ending}", _two({"label": 1.0, "number": 0.3}, both, size))
    add(f"loss_one_of_two_outputs{ending}", _two(None, {"label": crossentropy}, size))
