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
    NUMBER,
    PADDED,
    TOKENS,
    WEIGHT,
    Outcome,
    X,
    Y,
    add,
    crossentropy,
    data,
    fitted,
    perceptron,
    program,
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
    "picture": (
        lambda: keras.Sequential([perceptron(outputs=6, activation="sigmoid"), Reshape()]),
        X,
        (X > 0).astype("float32").reshape(-1, 2, 3),
    ),
    "tokens": (tagger, PADDED, TOKENS % 3),
    "unmasked": (lambda: tagger(mask_zero=False), PADDED, np.where(PADDED > 0, TOKENS % 3, -1)),
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
    "dice": ("picture", kl.Dice),
    "reduction_sum": ("number", lambda: kl.MeanSquaredError(reduction="sum")),
    "reduction_none": ("number", lambda: kl.MeanSquaredError(reduction=None)),
    "function_per_row": ("number", lambda: per_row),
    "function_sum": ("number", lambda: lambda y, p: 0.1 * ops.sum(ops.square(y - p))),
    "class_scalar": ("number", Scalar),
    "masked_sequences": ("tokens", crossentropy),
    "ignore_class": ("unmasked", lambda: crossentropy(ignore_class=-1)),
    "own_count_of_tokens": ("unmasked", lambda: masked_mean),
}
WEIGHTED: Dict[str, Tuple[str, Make]] = {
    "mse": ("number", kl.MeanSquaredError),
    "mse_by_weight": ("number", lambda: kl.MeanSquaredError(reduction="mean_with_sample_weight")),
    "class_per_row_sum": ("number", lambda: PerRow(reduction="sum")),
    "masked_sequences": ("tokens", crossentropy),
}


def _of(kind: str, loss: Make, *weight: Any) -> Callable[[Any], Outcome]:
    def program(strategy: Any) -> Outcome:
        make, x, y = KINDS[kind]
        tokens = kind == "tokens"  # every token has a weight, that of its row
        weights = [given[:, None].repeat(COLUMNS, axis=1) if tokens else given for given in weight]
        metrics = ["mae"] if y.dtype == "float32" else None
        return fitted(ready(strategy, make, loss=loss, metrics=metrics), data(x, y, *weights))

    return program


for name, (kind, loss) in LOSSES.items():
    add(f"loss_{name}", _of(kind, loss))
for name, (kind, loss) in WEIGHTED.items():
    add(f"loss_weighted_{name}", _of(kind, loss, WEIGHT))


class Penalty(layers.Layer):
    """Adds a loss of its input."""

    def __init__(self, penalty: Callable[[Any], Any]) -> None:
        super().__init__()
        self.penalty = penalty

    def call(self, inputs: Any) -> Any:
        self.add_loss(self.penalty(inputs))
        return inputs


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


def _penalized(penalty: Callable[[Any], Any]) -> Make:
    return lambda: perceptron(lambda: Penalty(penalty))


ADDED: Dict[str, Make] = {
    "added_mean": _penalized(lambda x: 0.1 * ops.mean(ops.square(x))),
    "added_sum": _penalized(lambda x: 0.01 * ops.sum(ops.square(x))),
    "added_vector": _penalized(lambda x: 0.01 * ops.sum(ops.square(x), axis=-1)),
    "activity_regularizer": lambda: perceptron(activity_regularizer=keras.regularizers.L2(0.05)),
    "compute_loss": lambda: perceptron(kind=OwnLoss, kernel_regularizer="l2"),
}


def _added(make: Make) -> Callable[[Any], Outcome]:
    return lambda strategy: fitted(ready(strategy, make, metrics=["accuracy"]), data())


for name, make in ADDED.items():
    add(f"loss_{name}", _added(make))


@program("loss")
def two_outputs(strategy: Any) -> Outcome:
    """A mean is added to the value of each row."""

    def make() -> Any:
        inputs = keras.Input((COLUMNS,))
        hidden = layers.Dense(6, activation="relu")(inputs)
        label, number = layers.Dense(3, name="label"), layers.Dense(1, name="number")
        return keras.Model(inputs, {"label": label(hidden), "number": number(hidden)})

    losses = {"label": crossentropy, "number": lambda: kl.MeanSquaredError(reduction=None)}
    weights = {"label": 1.0, "number": 0.3}
    how = {"loss": losses, "loss_weights": weights, "metrics": {"label": ["acc"]}}
    return fitted(ready(strategy, make, **how), data(X, {"label": Y, "number": NUMBER}))
