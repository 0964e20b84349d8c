"""The registry of this package's strategies, and where this process stands among their workers.

Keras' classes are changed for the whole process, so each change asks here whether a model's
strategy is one of this package. All others train as without it.
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
