"""Programs with Keras', custom and added losses, optimizers, precisions and frozen layers."""

# mypy: allow-subclassing-any

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

import keras
import tensorflow as tf
from keras import layers, ops
from keras import losses as kl
from keras import optimizers as ko
from keras_programs.common import (
    COLUMNS,
    NUMBER,
    PADDED,
    TOKENS,
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
    perceptron,
    program,
    ready,
    trained,
)
from kinds import Action, Change


def tagger() -> Any:
    """Returns a model that predicts a label for every token."""
    tokens = keras.Input((COLUMNS,), dtype="int32")
    hidden = layers.Embedding(9, 4, mask_zero=True)(tokens)
    hidden = layers.LSTM(4, return_sequences=True)(hidden)
    return keras.Model(
        tokens,
        layers.TimeDistributed(layers.Dense(3))(hidden),
    )


def reader() -> Any:
    """Returns a model that predicts a label for the tokens of a row."""
    tokens = keras.Input((COLUMNS,), dtype="int32")
    hidden = layers.Embedding(9, 4, mask_zero=True)(tokens)
    return keras.Model(
        tokens,
        layers.Dense(3)(layers.GRU(4)(hidden)),
    )


# For each kind: the model, its inputs and its targets.
KINDS: dict[str, tuple[Action, Any, Any]] = {
    "label": (perceptron, X, Y),
    "number": (lambda: perceptron(outputs=1, activation="softplus"), X, NUMBER),
    "picture": (
        lambda: keras.Sequential(
            [
                perceptron(outputs=6, activation="sigmoid"),
                layers.Reshape((2, 3)),
            ]
        ),
        X,
        (X > 0).astype("float32").reshape(-1, 2, 3),
    ),
    "tokens": (tagger, PADDED, TOKENS % 3),
    "text": (reader, PADDED, Y),
}


class PerRow(kl.Loss):
    def call(self, y_true: Any, y_pred: Any) -> Any:
        return ops.mean(
            ops.square(y_true - y_pred),
            axis=-1,
        )


LOSSES: dict[str, tuple[Any, ...]] = {
    "sparse_categorical": ("label", crossentropy),
    "dice": ("picture", kl.Dice),
    "reduction_sum": ("number", lambda: kl.MeanSquaredError(reduction="sum")),
    "reduction_none": ("number", lambda: kl.MeanSquaredError(reduction=None)),
    "function_sum": ("number", lambda: lambda y, p: 0.1 * ops.sum(ops.square(y - p))),
    "masked_sequences": ("tokens", crossentropy),
    "masked_rows": ("text", crossentropy),
    "weighted_mse_by_weight": (
        "number",
        lambda: kl.MeanSquaredError(reduction="mean_with_sample_weight"),
        WEIGHT,
    ),
    "weighted_class_per_row_sum": ("number", lambda: PerRow(reduction="sum"), WEIGHT),
}


def _of(strategy: Any, entry: tuple[Any, ...]) -> Outcome:
    kind, loss, *weight = entry
    make, x, y = KINDS[kind]
    metrics = ["mae"] if y.dtype == "float32" else None
    return fitted(
        ready(strategy, make, loss=loss, metrics=metrics),
        data(x, y, *weight),
    )


add_each("loss", _of, LOSSES)


class Penalty(layers.Layer):
    """Adds a penalty on its input to the loss."""

    def __init__(self, penalty: Change) -> None:
        super().__init__()
        self.penalty = penalty

    def call(self, inputs: Any) -> Any:
        self.add_loss(self.penalty(inputs))
        return inputs


class OwnLoss(keras.Model):
    """Overrides compute_loss() and tracks its own loss."""

    def __init__(self, *args: Any, **how: Any) -> None:
        super().__init__(*args, **how)
        self.own_tracker = keras.metrics.Mean(name="own_loss")

    def compute_loss(
        self, x: Any = None, y: Any = None, y_pred: Any = None, sample_weight: Any = None, **_: Any
    ) -> Any:
        loss = ops.mean((y_pred - ops.one_hot(y, 3)) ** 2) + sum(self.losses)
        self.own_tracker.update_state(loss)
        return loss


class Sparsity(keras.regularizers.Regularizer):
    """Compares the mean activity of a batch with a goal."""

    def __call__(self, x: Any) -> Any:
        rows = ops.cast(
            ops.shape(x)[0],
            x.dtype,
        )  # by which Keras divides
        return 0.5 * rows * ops.sum(ops.square(ops.mean(x, axis=0) - 0.1))


def _penalized(penalty: Change) -> Action:
    return lambda: perceptron(lambda: Penalty(penalty))


def _with_gradient(gradient: Change) -> Action:
    """Returns what makes a perceptron with a layer whose gradient is another one."""

    @tf.custom_gradient  # type: ignore[untyped-decorator]
    def same(x: Any) -> Any:
        return tf.identity(x), gradient

    return lambda: perceptron(lambda: layers.Lambda(same))


ADDED: dict[str, Action] = {
    "gradient_reversed": _with_gradient(lambda dy: -0.5 * dy),
    "gradient_clipped": _with_gradient(lambda dy: tf.clip_by_norm(dy, 0.01)),
    "added_sum": _penalized(lambda x: 0.01 * ops.sum(ops.square(x))),
    "added_vector": _penalized(
        lambda x: (
            0.01
            * ops.sum(
                ops.square(x),
                axis=-1,
            )
        )
    ),
    "activity_regularizer": lambda: perceptron(activity_regularizer=keras.regularizers.L2(0.05)),
    "activity_of_batch": lambda: perceptron(activity_regularizer=Sparsity()),
    "compute_loss": lambda: perceptron(kind=OwnLoss, kernel_regularizer="l2"),
}


add_each("loss", trained, ADDED)


@program("loss")
def added_mean(strategy: Any) -> Outcome:
    """Only the first step reveals that the loss is a mean; that step still updates the weights."""
    model = ready(
        strategy,
        _penalized(lambda x: ops.mean(ops.square(x))),
    )
    logs = model.train_on_batch(
        X[:24],
        Y[:24],
    )
    return {
        "logs": numbers(logs),
        **fitted(model, data()),
    }


@program("loss", differs=WEIGHTED_BY_ROWS)
def two_outputs(strategy: Any) -> Outcome:
    """The loss of one output is a mean, and the loss of the other has a value for each row."""

    def make() -> Any:
        inputs = keras.Input((COLUMNS,))
        hidden = layers.Dense(6, activation="relu")(inputs)
        label = layers.Dense(3, name="label")
        number = layers.Dense(1, name="number")
        return keras.Model(
            inputs,
            {"label": label(hidden), "number": number(hidden)},
        )

    losses = {
        "label": crossentropy,
        "number": lambda: kl.MeanSquaredError(reduction=None),
    }
    weights = {"label": 1.0, "number": 0.3}
    how = {"loss": losses, "loss_weights": weights, "metrics": {"label": ["acc"]}}
    return fitted(
        ready(strategy, make, **how),
        data(X, {"label": Y, "number": NUMBER}),
    )


OPTIMIZERS: dict[str, Action] = {
    "loss_scale": lambda: ko.LossScaleOptimizer(ko.SGD(0.1), dynamic_growth_steps=3),
    "global_clipnorm": lambda: ko.Adam(0.01, global_clipnorm=0.1),
    "accumulated": lambda: ko.SGD(0.1, gradient_accumulation_steps=2),
    "ema_overwritten": lambda: ko.SGD(
        0.1, use_ema=True, ema_momentum=0.8, ema_overwrite_frequency=3
    ),
}


def _optimized(strategy: Any, entry: Action) -> Outcome:
    return fitted(
        build(strategy, optimizer=entry),
        data(),
    )


class Lookahead(ko.SGD):
    """Moves weights towards slow copies, which `build` makes and assigns."""

    def build(self, variables: Any) -> None:
        super().build(variables)
        self.slow = [self.add_variable_from_reference(variable, "slow") for variable in variables]
        for slow, variable in zip(self.slow, variables):
            slow.assign(variable)

    def apply(self, grads: Any, trainable_variables: Any = None) -> None:
        super().apply(grads, trainable_variables)
        for slow, variable in zip(self.slow, self._trainable_variables):
            slow.assign(0.5 * (slow + variable))
            variable.assign(slow)


if hasattr(ko, "ScheduleFreeAdamW"):  # from Keras 3.14 on
    OPTIMIZERS["schedule_free"] = lambda: ko.ScheduleFreeAdamW(0.01)
OPTIMIZERS["assigning_in_build"] = partial(Lookahead, 0.1)


class Offset(layers.Layer):
    """Adds a trained offset, which begins as 3; keeps the number of its builds."""

    def build(self, shape: Any) -> None:
        self.offset = self.add_weight(
            shape=shape[-1:],
            initializer="zeros",
        )
        self.builds = self.add_weight(initializer="zeros", trainable=False)
        self.offset.assign(3 * ops.ones_like(self.offset))
        self.builds.assign_add(1.0)

    def call(self, x: Any) -> Any:
        return x + self.offset


@program("loss")
def layer_assigning_in_build(strategy: Any) -> Outcome:
    """The layer is built in the first step, and adds a number to the loss."""

    def make() -> Any:
        added = Penalty(ops.sum)
        return keras.Sequential(
            [
                Offset(),
                layers.Dense(8, "relu"),
                added,
                layers.Dense(3),
            ]
        )

    return fitted(
        ready(
            strategy,
            make,
            optimizer=lambda: ko.Adam(0.1),
        ),
        data(),
    )


add_each("optimizer", _optimized, OPTIMIZERS)


@contextmanager
def precision(policy: str) -> Iterator[None]:
    """Sets the dtype policy, and unless it is mixed also the default float type, temporarily."""
    if not policy.startswith("mixed"):
        keras.config.set_floatx(policy)
    keras.mixed_precision.set_global_policy(policy)
    try:
        yield
    finally:
        keras.config.set_floatx("float32")
        keras.mixed_precision.set_global_policy("float32")


OVERFLOWING = X.copy()
OVERFLOWING[:3] = 3e4  # the first rows of one batch overflow float16 after a layer


@program("precision", within=5e-3)
def float16_overflow(strategy: Any) -> Outcome:
    with precision("mixed_float16"):
        return fitted(
            build(strategy),
            data(OVERFLOWING),
            test=data(),
        )


@program("precision", within=1e-6)
def float64(strategy: Any) -> Outcome:
    with precision("float64"):
        return fitted(
            build(strategy),
            data(X.astype("float64")),
            test=data(),
        )


@program("optimizer")
def frozen_then_compiled_again(strategy: Any) -> Outcome:
    model = build(
        strategy,
        optimizer=lambda: ko.Adam(0.01),
    )
    model.layers[1].trainable = False
    with strategy.scope():
        model.compile(
            "adam",
            crossentropy(),
        )
    first = fitted(model, data())
    model.layers[1].trainable = True
    with strategy.scope():
        model.compile(
            ko.SGD(0.01),
            crossentropy(),
        )
    return {"first": first, **fitted(model, data())}
