"""Metrics of Keras 3 in training loops of one's own, with `strategy.run`.

At the end of `strategy.run`, the replicas add up what each of them has added to metrics, so that
these have the same values in all workers, and one worker alone can read them.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from contextvars import ContextVar
from typing import Any

import tensorflow as tf

from slurm_resolver.errors import FitError
from slurm_resolver.tf.keras.protocols import Metric
from slurm_resolver.tf.keras.replicas import is_in_replica
from slurm_resolver.tf.keras.sharing import without_conversion
from slurm_resolver.tf.keras.sums import add_up
from slurm_resolver.tf.private_names import Method


class _Additions:
    """What a replica adds to metrics, whose variables were the same in all replicas.

    A condition, loop or tf.function in a step has a graph of its own, in which TensorFlow cannot
    add up.
    """

    def __init__(self) -> None:
        self._graph = tf.compat.v1.get_default_graph()
        self._before: dict[int, tuple[Any, tf.Tensor]] = {}  # a variable and its value, by its id

    def sees_updates(self) -> bool:
        """Whether the updates of metrics that are traced now happen whenever this step does."""
        return tf.executing_eagerly() or bool(self._graph.building_function)

    def _is_inside(self) -> bool:
        """Whether the caller is in a condition, loop or tf.function."""
        return self._graph is not tf.compat.v1.get_default_graph()

    def note(self, metric: Metric, zeros: bool = False) -> None:
        """Notes the values of a metric's variables, or that new ones have begun as zeros."""
        with self._graph.as_default() if self._is_inside() else contextlib.nullcontext():
            for variable in metric.variables:
                if id(variable) not in self._before:
                    value = tf.zeros(variable.shape, variable.dtype) if zeros else variable.value
                    self._before[id(variable)] = variable, tf.convert_to_tensor(value)

    def forget(self, metric: Metric) -> None:
        """Forgets what has been added to a metric, which all replicas reset."""
        for variable in metric.variables:
            if self._before.pop(id(variable), None) and self._is_inside():
                raise FitError(
                    f"a condition or loop in a step resets the metric {metric.name!r}, which has "
                    "been updated before. Reset it outside of the condition or loop"
                )

    def _totals(self) -> list[tuple[Any, tf.Tensor]]:
        """Returns the variables, and their values with what all replicas have added."""
        noted = list(self._before.values())
        sums = add_up([variable.value - before for variable, before in noted])
        return [(variable, before + total) for (variable, before), total in zip(noted, sums)]

    def add_changes(self) -> None:
        """Adds what all replicas have added."""
        for variable, total in self._totals():
            variable.value.assign(total)
        self._before.clear()

    def result(self, original: Method, metric: Metric) -> object:
        """Returns a metric's result, with what all replicas have added so far."""
        import keras

        if self._is_inside():  # which may not be taken
            with keras.StatelessScope(state_mapping=self._totals()):
                return original(metric)
        self.add_changes()
        return original(metric)


# What is being traced, or run eagerly.
_current: ContextVar[_Additions | None] = ContextVar("current", default=None)


def _current_additions() -> _Additions | None:
    """Returns what the caller adds to metrics; None outside of `strategy.run`."""
    return _current.get() if is_in_replica() else None


@contextlib.contextmanager
def _adding_up() -> Iterator[None]:
    """Adds up what a replica's function adds to metrics in the block."""
    additions = _Additions()
    token = _current.set(additions)
    try:
        yield
    finally:
        _current.reset(token)
    additions.add_changes()


@without_conversion
def adding_up(function: Any) -> Any:
    """Makes a replica's function of `strategy.run` add up metrics at its end.

    A tf.function stays as it is, because TensorFlow traces it in another way.
    """
    if isinstance(function, type(tf.function(len))):
        return function

    def wrapped(*args: object, **kwargs: object) -> object:
        with _adding_up():
            return function(*args, **kwargs)

    return wrapped


def update_state(original: Method, metric: Metric, *args: object, **kwargs: object) -> None:
    """Updates a metric in a replica."""
    additions = _current_additions()
    if additions and additions.sees_updates():
        additions.note(metric)
        original(metric, *args, **kwargs)
        additions.note(metric, zeros=True)
    else:
        with _adding_up():
            update_state(original, metric, *args, **kwargs)


def result(original: Method, metric: Metric) -> object:
    """Returns a metric's result; in `strategy.run`, with what all replicas have added so far."""
    additions = _current_additions()
    return additions.result(original, metric) if additions else original(metric)


def reset_state(original: Method, metric: Metric) -> None:
    """Resets a metric, and in `strategy.run` what has been added to it so far."""
    additions = _current_additions()
    if additions:
        additions.forget(metric)
    original(metric)
