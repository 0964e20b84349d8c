"""Whether the step of one process is being traced, in which no strategy takes part."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Iterator, Mapping, Sequence
from contextvars import ContextVar
from typing import Any

import tensorflow as tf

from slurm_resolver.tf.keras.strategy_registry import is_ours
from slurm_resolver.tf.partition.step import of_own_rows
from slurm_resolver.tf.private_names import Method

_traces = ContextVar("traces", default=False)  # of each thread


@contextlib.contextmanager
def as_one_process() -> Iterator[None]:
    """Lets the block run a step as one process does."""
    token = _traces.set(True)
    try:
        yield
    finally:
        _traces.reset(token)


def is_one_process() -> bool:
    """Whether the caller is in such a block."""
    return _traces.get()


def update_once(
    original: Method,
    variable: tf.Variable,
    function: Method,
    args: Sequence[object] = (),
    kwargs: Mapping[str, object] | None = None,
    group: bool = True,
) -> object:
    """Replaces a strategy's `extended.update`: in the step of one process, it updates one copy.

    Otherwise, the strategy of the variable updates all copies. That of an optimizer from outside
    the scope is another one.
    """
    if not is_one_process():
        owner: Any = getattr(variable, "distribute_strategy", None)
        update = owner.extended.update.__wrapped__ if is_ours(owner) else original
        return update(variable, function, args, kwargs, group)
    local = getattr(variable, "values", (variable,))
    return function(local[0], *args, **(kwargs or {}))


def place_slot(strategy: tf.distribute.Strategy, original: Method, variable: tf.Variable) -> Any:
    """Replaces a strategy's `extended.colocate_vars_with`, which an optimizer calls for its slots.

    It must be called in the strategy's scope, which neither a step of one process nor Keras' own
    callbacks enter.
    """
    if is_one_process():
        return contextlib.nullcontext()
    return original(variable) if tf.distribute.has_strategy() else strategy.scope()


def place_beside(original: Method, variable: tf.Variable) -> Any:
    """Replaces the default strategy's `extended.colocate_vars_with`.

    An optimizer from outside the scope calls it for the slots of a model from the scope.
    """
    if isinstance(variable, tf.distribute.DistributedValues):
        return variable.distribute_strategy.extended.colocate_vars_with(variable)
    return original(variable)


def moments_of_own_rows(
    original: Method, layer: Any, inputs: tf.Tensor, mask: tf.Tensor | None
) -> object:
    """Replaces BatchNormalization's `_moments`: without `synchronized`, of a replica's own rows.

    So Keras documents it for any strategy.
    """
    if not is_one_process() or layer.synchronized or tf.executing_eagerly():
        return original(layer, inputs, mask)
    return of_own_rows(functools.partial(original, layer))(inputs, mask)
