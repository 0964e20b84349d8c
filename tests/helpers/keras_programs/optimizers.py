"""Optimizers: every class of Keras, clipping, averages, schedules, precisions, frozen layers."""

from __future__ import annotations

from contextlib import contextmanager
from typing import Any, Callable, Dict, Iterator, Tuple

import keras
import numpy as np
import tensorflow as tf
from keras import optimizers as ko
from keras.optimizers import schedules
from keras_programs.common import (
    UNEVEN,
    Outcome,
    X,
    Y,
    add,
    build,
    data,
    fitted,
    perceptron,
    program,
    ready,
)

Make = Callable[[], Any]

OPTIMIZERS: Dict[str, Make] = {
    "sgd": lambda: ko.SGD(0.1),
    "sgd_momentum": lambda: ko.SGD(0.1, momentum=0.9),
    "sgd_nesterov": lambda: ko.SGD(0.1, momentum=0.9, nesterov=True),
    "sgd_by_name": lambda: "sgd",
    "rmsprop": lambda: ko.RMSprop(0.01),
    "rmsprop_centered": lambda: ko.RMSprop(0.01, momentum=0.5, centered=True),
    "adam": lambda: ko.Adam(0.01),
    "adam_amsgrad": lambda: ko.Adam(0.01, amsgrad=True),
    "adam_weight_decay": lambda: ko.Adam(0.01, weight_decay=0.01),
    "adamw": lambda: ko.AdamW(0.01, weight_decay=0.02),
    "adadelta": lambda: ko.Adadelta(1.0),
    "adagrad": lambda: ko.Adagrad(0.1),
    "adamax": lambda: ko.Adamax(0.01),
    "adafactor": lambda: ko.Adafactor(0.05),
    "nadam": lambda: ko.Nadam(0.01),
    "ftrl": lambda: ko.Ftrl(0.1, l2_regularization_strength=0.01),
    "lion": lambda: ko.Lion(0.003),
    "lamb": lambda: ko.Lamb(0.01),
    "muon": lambda: ko.Muon(0.01),
    "schedule_free_adamw": lambda: ko.ScheduleFreeAdamW(0.01),
    "multi": lambda: ko.MultiOptimizer(ko.OptimizerMap(ko.SGD(0.1), {".*bias": ko.Adam(0.01)})),
    "loss_scale": lambda: ko.LossScaleOptimizer(ko.SGD(0.1), dynamic_growth_steps=3),
    "clipnorm": lambda: ko.SGD(0.1, clipnorm=0.05),
    "clipvalue": lambda: ko.SGD(0.1, clipvalue=0.02),
    "global_clipnorm": lambda: ko.Adam(0.01, global_clipnorm=0.1),
    "accumulated": lambda: ko.SGD(0.1, gradient_accumulation_steps=2),
    "accumulated_adam_clipped": lambda: ko.Adam(0.01, gradient_accumulation_steps=3, clipnorm=0.1),
    "ema": lambda: ko.Adam(0.01, use_ema=True, ema_momentum=0.8),
    "ema_overwritten": lambda: ko.SGD(
        0.1, use_ema=True, ema_momentum=0.8, ema_overwrite_frequency=3
    ),
    "ema_accumulated": lambda: ko.SGD(0.1, use_ema=True, gradient_accumulation_steps=2),
    "loss_scale_factor": lambda: ko.SGD(0.1, loss_scale_factor=8.0),
    "exponential_decay": lambda: ko.SGD(schedules.ExponentialDecay(0.1, 3, 0.7)),
    "cosine_decay": lambda: ko.Adam(
        schedules.CosineDecay(0.001, 8, warmup_target=0.02, warmup_steps=3)
    ),
    "cosine_restarts": lambda: ko.SGD(schedules.CosineDecayRestarts(0.1, 3)),
    "piecewise": lambda: ko.SGD(schedules.PiecewiseConstantDecay([2, 5], [0.2, 0.1, 0.05])),
    "polynomial": lambda: ko.RMSprop(schedules.PolynomialDecay(0.02, 8, 0.001)),
    "inverse_time": lambda: ko.SGD(schedules.InverseTimeDecay(0.1, 2, 0.5, staircase=True)),
    "own_schedule": lambda: ko.Adam(Warmup()),
}

UNEVEN_TOO = ["sgd", "adam", "clipnorm", "accumulated", "lion", "ema", "adafactor", "loss_scale"]


class Warmup(schedules.LearningRateSchedule):  # type: ignore[misc]
    """As the schedule of the Transformer."""

    def __call__(self, step: Any) -> Any:
        step = keras.ops.cast(step, "float32") + 1.0
        return 0.05 * keras.ops.minimum(keras.ops.rsqrt(step), step * 4**-1.5)


def _of(optimizer: Make, **size: int) -> Callable[[Any], Outcome]:
    return lambda strategy: fitted(build(strategy, optimizer=optimizer), data(**size))


for name, optimizer in OPTIMIZERS.items():
    add(f"optimizer_{name}", _of(optimizer))
for name in UNEVEN_TOO:
    add(f"optimizer_{name}_33", _of(OPTIMIZERS[name], **UNEVEN))


@contextmanager
def precision(policy: str) -> Iterator[None]:
    """The global policy, or the type of all floating-point numbers, for a while."""
    if policy.startswith("mixed"):
        keras.mixed_precision.set_global_policy(policy)
    else:
        keras.config.set_floatx(policy)
        keras.mixed_precision.set_global_policy(policy)
    try:
        yield
    finally:
        keras.config.set_floatx("float32")
        keras.mixed_precision.set_global_policy("float32")


OVERFLOWING = X.copy()
OVERFLOWING[:3] = 3e4  # infinite in float16 after a layer, in the first rows of one batch

PRECISIONS: Dict[str, Tuple[str, Make, Any, float]] = {
    "bfloat16": ("mixed_bfloat16", lambda: ko.SGD(0.1), X, 3e-2),
    "bfloat16_adam": ("mixed_bfloat16", lambda: ko.Adam(0.01), X, 5e-2),
    "float16": ("mixed_float16", lambda: ko.SGD(0.1), X, 5e-3),
    "float16_growing": (
        "mixed_float16",
        lambda: ko.LossScaleOptimizer(ko.SGD(0.1), dynamic_growth_steps=2),
        X,
        5e-3,
    ),
    "float16_overflow": ("mixed_float16", lambda: ko.SGD(0.1), OVERFLOWING, 5e-3),
    "float16_overflow_small_scale": (
        "mixed_float16",
        lambda: ko.LossScaleOptimizer(ko.Adam(0.01), initial_scale=8.0, dynamic_growth_steps=2),
        OVERFLOWING,
        2e-2,
    ),
    "float64": ("float64", lambda: ko.Adam(0.01), X.astype("float64"), 1e-6),
    "float64_of_float32": ("float64", lambda: ko.SGD(0.1), X, 1e-6),
    "floatx_float16": ("float16", lambda: ko.SGD(0.1), X, 2e-2),
}


def _precise(policy: str, optimizer: Make, x: Any) -> Callable[[Any], Outcome]:
    def program(strategy: Any) -> Outcome:
        with precision(policy):
            model = build(strategy, optimizer=optimizer)
            return fitted(model, data(x), test=data(X))

    return program


for name, (policy, optimizer, x, within) in PRECISIONS.items():
    add(f"precision_{name}", _precise(policy, optimizer, x), within=within)


CONSTRAINTS: Dict[str, Make] = {
    "max_norm": lambda: keras.constraints.MaxNorm(0.8),
    "non_negative": keras.constraints.NonNeg,
    "unit_norm": keras.constraints.UnitNorm,
    "min_max_norm": lambda: keras.constraints.MinMaxNorm(0.3, 0.9),
}


def _constrained(constraint: Make) -> Callable[[Any], Outcome]:
    return lambda strategy: fitted(
        ready(strategy, lambda: perceptron(kernel_constraint=constraint())), data()
    )


for name, constraint in CONSTRAINTS.items():
    add(f"constraint_{name}", _constrained(constraint))


@program("optimizer")
def frozen_then_compiled_again(strategy: Any) -> Outcome:
    model = build(strategy, optimizer=lambda: ko.Adam(0.01))
    model.layers[1].trainable = False
    with strategy.scope():
        model.compile("adam", keras.losses.SparseCategoricalCrossentropy(from_logits=True))
    first = fitted(model, data())
    model.layers[1].trainable = True
    with strategy.scope():
        model.compile(ko.SGD(0.01), keras.losses.SparseCategoricalCrossentropy(from_logits=True))
    return {"first": first, **fitted(model, data())}


@program("optimizer")
def frozen_without_compiling(strategy: Any) -> Outcome:
    model = build(strategy, optimizer=lambda: ko.SGD(0.1, momentum=0.9))
    model.layers[1].trainable = False
    return fitted(model, data())


@program("optimizer")
def learning_rate_set_between_fits(strategy: Any) -> Outcome:
    model = build(strategy)
    model.fit(data(), verbose=0)
    model.optimizer.learning_rate = 0.01
    return {"iterations": int(model.optimizer.iterations.numpy()), **fitted(model, data())}


@program("optimizer")
def several_optimizers_by_layer(strategy: Any) -> Outcome:
    """The model's own train_step gives each layer's gradients to an optimizer of its own."""
    model = build(strategy, kind=TwoOptimizers)
    return fitted(model, data())


class TwoOptimizers(keras.Model):  # type: ignore[misc]
    def train_step(self, batch: Any) -> Any:
        x, y = batch
        with tf.GradientTape() as tape:
            predicted = self(x, training=True)
            loss = self.compute_loss(x, y, predicted)
        variables = self.trainable_variables
        gradients = tape.gradient(loss, variables)
        self.optimizer.apply_gradients(zip(gradients[:2], variables[:2]))
        self.second.apply_gradients(zip(gradients[2:], variables[2:]))
        return self.compute_metrics(x, y, predicted)

    def compile(self, *args: Any, **how: Any) -> None:
        super().compile(*args, **how)
        self.second = ko.Adam(0.01)
        self.optimizer.build(self.trainable_variables[:2])
        self.second.build(self.trainable_variables[2:])


@program("optimizer")
def sparse_gradients(strategy: Any) -> Outcome:
    """Those of an embedding are slices."""
    tokens = np.abs((X * 3).astype("int32")) % 9
    model = ready(
        strategy,
        lambda: keras.Sequential(
            [
                keras.layers.Embedding(9, 4),
                keras.layers.GlobalAveragePooling1D(),
                keras.layers.Dense(3),
            ]
        ),
        optimizer=lambda: ko.Adam(0.01, clipnorm=0.5),
    )
    return fitted(model, data(tokens, Y))
