"""Keras 3's `fit`, `evaluate` and `predict` on several workers, and the two strategies for it.

Only `patches` changes Keras and TensorFlow. It lists each change and its reason.
"""

from __future__ import annotations

import weakref
from typing import Any

import tensorflow as tf

# The strategies of this package that this process has made.
strategies: weakref.WeakSet[Any] = weakref.WeakSet()


def are_several() -> bool:
    """Whether this process is one of several workers, or coordinates them."""
    return any(strategy.of_several for strategy in strategies)


def is_coordinated() -> bool:
    """Whether the caller is in the scope, or a step, of a strategy that coordinates workers."""
    strategy = tf.distribute.get_strategy()
    return strategy in strategies and not hasattr(strategy, "sharing")
