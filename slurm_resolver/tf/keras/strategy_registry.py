"""The registry of this package's strategies, and where this process stands among their workers.

Keras' classes are changed for the whole process, so each change asks here whether a model's
strategy is one of this package. All others train as without it.
"""

from __future__ import annotations

import weakref

import tensorflow as tf

from slurm_resolver.tf.keras.sharing import Sharing

# The strategies of this package that this process has made.
ours: weakref.WeakSet[tf.distribute.Strategy] = weakref.WeakSet()


def is_ours(strategy: tf.distribute.Strategy) -> bool:
    """Whether a strategy is one of this package."""
    return strategy in ours


def sharing_of(strategy: tf.distribute.Strategy) -> Sharing | None:
    """Returns how a strategy's replicas share a batch.

    None for a strategy that coordinates workers, each of which takes whole batches, and for one
    that is not of this package.
    """
    return getattr(strategy, "sharing", None) if is_ours(strategy) else None


def are_several() -> bool:
    """Whether this process is one of several workers, or coordinates them."""
    return any(strategy.of_several for strategy in ours)


def is_coordinated() -> bool:
    """Whether the caller is in the scope, or a step, of a strategy that coordinates workers."""
    strategy = tf.distribute.get_strategy()
    return is_ours(strategy) and not sharing_of(strategy)
