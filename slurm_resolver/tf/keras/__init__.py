"""Keras 3's `fit`, `evaluate` and `predict` on several workers, and the two strategies for it.

`patches` is the one place that changes Keras and TensorFlow, and lists what it changes and why.
"""

from __future__ import annotations

import weakref
from typing import Any

import tensorflow as tf

# This package's strategies that have been made in this process.
strategies: weakref.WeakSet[Any] = weakref.WeakSet()


def are_several() -> bool:
    """Whether this process is one of several workers, or coordinates them."""
    return any(strategy.of_several for strategy in strategies)


def is_coordinated() -> bool:
    """Whether the caller is in the scope, or a step, of a strategy that coordinates workers."""
    strategy = tf.distribute.get_strategy()
    return strategy in strategies and hasattr(strategy, "coordinator")
