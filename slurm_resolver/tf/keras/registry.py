"""The strategies of this process under which Keras 3's models train in this package's way."""

from __future__ import annotations

import sys
import weakref
from typing import Any

import tensorflow as tf

from slurm_resolver.preflight.keras_version import keras_problem

strategies: weakref.WeakSet[Any] = weakref.WeakSet()


def are_several() -> bool:
    """Whether this process is one of several workers, or coordinates them."""
    return any(strategy.of_several for strategy in strategies)


def is_coordinated() -> bool:
    """Whether the caller is in the scope, or a step, of a strategy that coordinates workers."""
    strategy = tf.distribute.get_strategy()
    return strategy in strategies and hasattr(strategy, "coordinator")


def called_by_keras() -> bool:
    """Whether the caller of the calling method is a Keras 3 that trains rightly."""
    module = str(sys._getframe(2).f_globals.get("__name__", ""))
    if module.partition(".")[0] != "keras":
        return False
    version = str(sys.modules["keras"].__version__)
    return not version.startswith("2.") and not keras_problem(version)
