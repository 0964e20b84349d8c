"""Optimizers: every class of Keras, clipping, averages, schedules, precisions, frozen layers."""

from __future__ import annotations

from contextlib import contextmanager
from typing import Any, Callable, Dict, Iterator, Tuple

import keras
import numpy as np
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
    program,
    ready,
)

Make = Callable[[], Any]

OPTIMIZERS: Dict[str, Make] = {
    "sgd": lambda: ko.SGD(0.1),
    "adam": lambda: ko.Adam(0.01),
    "schedule_free_adamw": lambda: ko.ScheduleFreeAdamW(0.01),
    "multi": lambda: ko.MultiOptimizer(ko.OptimizerMap(ko.SGD(0.1), {".*bias": ko.Adam(0.01)})),
    "loss_scale": lambda: ko.LossScaleOptimizer(ko.SGD(0.1), dynamic_growth_steps=3),
    "clipnorm": lambda: ko.SGD(0.1, clipnorm=0.05),
    "clipvalue": lambda: ko.SGD(0.1, clipvalue=0.02),
    "global_clipnorm": lambda: ko.Adam(0.01, global_clipnorm=0.1),
    "accumulated": lambda: ko.SGD(0.1, gradient_accumulation_steps=2),
    "ema": lambda: ko.Adam(0.01, use_ema=True, ema_momentum=0.8),
    "ema_overwritten": lambda: ko.SGD(
        0.1, use_ema=True, ema_momentum=0.8, ema_overwrite_frequency=3
    ),
    "loss_scale_factor": lambda: ko.SGD(0.1, loss_scale_factor=8.0),
    "exponential_decay": lambda: ko.SGD(schedules.ExponentialDecay(0.1, 3, 0.7)),
}

UNEVEN_TOO = ["adam", "clipnorm", "accumulated", "loss_scale"]


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
    "float16": ("mixed_float16", lambda: ko.SGD(0.1), X, 5e-3),
    "float16_overflow": ("mixed_float16", lambda: ko.SGD(0.1), OVERFLOWING, 5e-3),
    "float16_overflow_small_scale": (
        "mixed_float16",
        lambda: ko.LossScaleOptimizer(ko.Adam(0.01), initial_scale=8.0, dynamic_growth_steps=2),
        OVERFLOWING,
        2e-2,
    ),
    "float64": ("float64", lambda: ko.Adam(0.01), X.astype("float64"), 1e-6),
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
