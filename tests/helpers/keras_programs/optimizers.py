"""Optimizers: every class of Keras, clipping, averages, schedules, precisions, frozen layers."""

from __future__ import annotations

from contextlib import contextmanager
from typing import Any, Callable, Dict, Iterator

import keras
import numpy as np
from keras import optimizers as ko
from keras_programs.common import (
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
    "adam": lambda: ko.Adam(0.01),
    "loss_scale": lambda: ko.LossScaleOptimizer(ko.SGD(0.1), dynamic_growth_steps=3),
    "clipnorm": lambda: ko.SGD(0.1, clipnorm=0.05),
    "global_clipnorm": lambda: ko.Adam(0.01, global_clipnorm=0.1),
    "accumulated": lambda: ko.SGD(0.1, gradient_accumulation_steps=2),
    "ema_overwritten": lambda: ko.SGD(
        0.1, use_ema=True, ema_momentum=0.8, ema_overwrite_frequency=3
    ),
}


def _of(optimizer: Make) -> Callable[[Any], Outcome]:
    return lambda strategy: fitted(build(strategy, optimizer=optimizer), data())


for name, optimizer in OPTIMIZERS.items():
    add(f"optimizer_{name}", _of(optimizer))


@contextmanager
def precision(policy: str) -> Iterator[None]:
    """The global policy, or the type of all floating-point numbers, for a while."""
    if not policy.startswith("mixed"):
        keras.config.set_floatx(policy)
    keras.mixed_precision.set_global_policy(policy)
    try:
        yield
    finally:
        keras.config.set_floatx("float32")
        keras.mixed_precision.set_global_policy("float32")


OVERFLOWING = X.copy()
OVERFLOWING[:3] = 3e4  # infinite in float16 after a layer, in the first rows of one batch


def _precise(policy: str, x: Any) -> Callable[[Any], Outcome]:
    def program(strategy: Any) -> Outcome:
        with precision(policy):
            return fitted(build(strategy), data(x), test=data())

    return program


add("precision_float16_overflow", _precise("mixed_float16", OVERFLOWING), within=5e-3)
add("precision_float64", _precise("float64", X.astype("float64")), within=1e-6)


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
        optimizer=lambda: ko.SGD(0.1, clipnorm=0.5),
    )
    return fitted(model, data(tokens, Y))
