"""How Keras 3 and its models stand to the strategies."""

from __future__ import annotations

import sys
import weakref
from typing import Any

import tensorflow as tf

from slurm_resolver.preflight.keras_version import keras_problem

# This package's strategies that have been made in this process.
strategies: weakref.WeakSet[Any] = weakref.WeakSet()


def are_several() -> bool:
    """Whether this process is one of several workers, or coordinates them."""
    return any(strategy.of_several for strategy in strategies)


def called_by_keras() -> bool:
    """Whether the caller of the calling method is Keras 3, not the user or Keras 2."""
    module = sys._getframe(2).f_globals.get("__name__", "")
    return str(module).partition(".")[0] == "keras" and not _keras_version().startswith("2.")


def keras_is_patched() -> bool:
    """Whether this process's Keras is one whose models the strategies make functions for."""
    return not keras_problem(_keras_version())


def _keras_version() -> str:
    return str(sys.modules["keras"].__version__)


def is_of_no_scope(model: Any) -> bool:
    """Whether a model was built outside any scope, and this is no scope either."""
    default = not tf.distribute.has_strategy()
    return default and model.distribute_strategy is tf.distribute.get_strategy()


def without_optionals(batch: Any) -> Any:
    """Returns a batch in which what Keras has left out, such as sample weights, is None."""
    return tf.nest.map_structure(
        lambda value: None if isinstance(value, tf.experimental.Optional) else value, batch
    )
