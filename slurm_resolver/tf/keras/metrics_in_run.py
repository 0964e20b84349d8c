"""Metrics of Keras 3 in training loops of one's own, with `strategy.run`.

At the end of `strategy.run`, the replicas add up what each of them has added to metrics, so that
these have the same values in all workers, and one worker alone can read them.
"""

from __future__ import annotations

import contextlib
from contextvars import ContextVar
from typing import Any

import tensorflow as tf

from slurm_resolver.errors import FitError
from slurm_resolver.tf.keras.step import add_up
from slurm_resolver.tf.private_names import Method

# The function of `strategy.run` that is being called, or traced.
_run: ContextVar[_Run | None] = ContextVar("run", default=None)


class _Run:
    """A context in which a replica's function updates metrics, until they are added up.

    A condition, loop or tf.function in the replica's function has a graph of its own, in which
    TensorFlow cannot add up.
    """

    def __init__(self) -> None:
        self._graph = _graph()
        self._before: dict[int, tuple[Any, Any]] = {}  # a variable and its value, by its id

    def __enter__(self) -> None:
        self._token = _run.set(self)

    def __exit__(self, error: type[BaseException] | None, *_: Any) -> None:
        _run.reset(self._token)
        if error is None:
            for variable, total in self.totals():
                variable.value.assign(total)

    def sees_updates(self) -> bool:
        """Whether the updates of metrics that are traced now happen whenever this run does."""
        return tf.executing_eagerly() or bool(self._graph.building_function)

    def note(self, metric: Any, *, made: bool = False) -> None:
        """Notes the values of a metric's variables; `made` ones began as zeros."""
        inner = self._graph is not _graph()
        with self._graph.as_default() if inner else contextlib.nullcontext():
            for one in metric.variables:
                value = tf.zeros(one.shape, one.dtype) if made else tf.convert_to_tensor(one.value)
                self._before.setdefault(id(one), (one, value))

    def forget(self, metric: Any) -> None:
        """Forgets the variables of a metric that is reset, in all replicas alike."""
        for one in metric.variables:
            if self._before.pop(id(one), None) and self._graph is not _graph():
                raise FitError(
                    f"a condition or loop in strategy.run resets the metric {metric.name!r}, "
                    "which has been updated before. Reset it outside of strategy.run"
                )

    def totals(self) -> list[tuple[Any, Any]]:
        """Returns the variables, and their values with what all replicas have added."""
        noted = list(self._before.values())
        sums = add_up([one.value - before for one, before in noted])
        return [(one, before + total) for (one, before), total in zip(noted, sums)]


@tf.autograph.experimental.do_not_convert  # type: ignore[untyped-decorator]
def adding_up(function: Any) -> Any:
    """Makes a replica's function of `strategy.run` add up metrics at its end.

    A tf.function stays as it is, because TensorFlow traces it in another way.
    """
    if isinstance(function, type(tf.function(len))):
        return function

    def wrapped(*args: Any, **kwargs: Any) -> Any:
        with _Run():
            return function(*args, **kwargs)

    return wrapped


def update_state(original: Method, metric: Any, *args: Any, **kwargs: Any) -> None:
    """Updates a metric in a replica."""
    run = _run.get()
    if not run or not run.sees_updates():
        with _Run():
            update_state(original, metric, *args, **kwargs)
        return
    run.note(metric)
    original(metric, *args, **kwargs)
    run.note(metric, made=True)


def result(original: Method, metric: Any) -> Any:
    """Returns a metric's result; in `strategy.run`, with what all replicas have added so far."""
    import keras

    run = _run.get()
    if not run:
        return original(metric)
    with keras.StatelessScope(state_mapping=run.totals()):
        return original(metric)


def reset_state(original: Method, metric: Any) -> None:
    """Resets a metric, and in `strategy.run` what has been added to it so far."""
    run = _run.get()
    if run:
        run.forget(metric)
    original(metric)


def _graph() -> Any:
    return tf.compat.v1.get_default_graph()
