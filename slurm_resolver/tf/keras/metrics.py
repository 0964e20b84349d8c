"""Metrics of Keras 3 in training loops of one's own, and on parameter servers.

In a step of Keras' own, which is traced as in one process, metrics are variables like any other. At
the end of `strategy.run`, the replicas add up what each of them has added to metrics, as
TensorFlow's classes do, so that these have the same values in all workers, and one worker alone can
read them.
"""

from __future__ import annotations

import contextlib
import itertools
import weakref
from contextvars import ContextVar
from typing import Any

import tensorflow as tf

from slurm_resolver.errors import FitError
from slurm_resolver.tf import private_names
from slurm_resolver.tf.keras.one_process import is_one_process
from slurm_resolver.tf.keras.protocols import Metric
from slurm_resolver.tf.keras.replicas import is_in_replica
from slurm_resolver.tf.keras.sharing import without_conversion
from slurm_resolver.tf.keras.strategy_registry import is_coordinated, sharing_of
from slurm_resolver.tf.keras.sums import add_up
from slurm_resolver.tf.private_names import Method


class _Additions:
    """What a replica adds to metrics, whose variables were the same in all replicas.

    A condition, loop or tf.function in a step has a graph of its own, in which TensorFlow cannot
    add up.

    Attributes:
        graph: what is being traced.
    """

    def __init__(self) -> None:
        self.graph = tf.compat.v1.get_default_graph()
        self._before: dict[int, tuple[Any, tf.Tensor]] = {}  # a variable and its value, by its id
        self._reset: dict[int, tf.Graph] = {}  # where a metric was reset inside, by its id
        self._note_traced()

    def _note_traced(self) -> None:
        """Notes the metrics that a tf.function may update, which is not traced again."""
        for metric in list(_traced.values()):
            self.note(metric)

    def _is_inside(self) -> bool:
        """Whether the caller is in a condition, loop or tf.function."""
        return self.graph is not tf.compat.v1.get_default_graph()

    def note(self, metric: Metric, zeros: bool = False) -> None:
        """Notes the values of a metric's variables, or that new ones have begun as zeros."""
        outside: Any = contextlib.nullcontext()
        if self._is_inside():
            _traced[id(metric)] = metric
            if self._reset.get(id(metric)) is tf.compat.v1.get_default_graph():
                raise self._error(metric)
            outside = self.graph.as_default() if self.graph.building_function else tf.init_scope()
        with outside:
            for variable in metric.variables:
                if id(variable) not in self._before:
                    value = tf.zeros(variable.shape, variable.dtype) if zeros else variable.value
                    self._before[id(variable)] = variable, tf.convert_to_tensor(value)

    def settle(self, metric: Metric, resets: bool) -> None:
        """Adds what all replicas have added, before a metric is read or reset.

        Raises:
            FitError: inside, if it has been updated before. What is noted would be its value before
                a reset inside.
        """
        if any(id(variable) in self._before for variable in metric.variables):
            if self._is_inside():
                raise self._error(metric)
            self.add_changes()
            self._note_traced()
        elif resets and self._is_inside():
            self._reset[id(metric)] = tf.compat.v1.get_default_graph()

    @staticmethod
    def _error(metric: Metric) -> FitError:
        return FitError(
            "a condition, loop or tf.function in a step reads or resets the metric "
            f"{metric.name!r}, which it also updates, or which has been updated before. Do so "
            "outside of it"
        )

    def add_changes(self) -> None:
        """Adds what all replicas have added."""
        noted = list(self._before.values())
        sums = add_up([variable.value - before for variable, before in noted])
        for (variable, before), total in zip(noted, sums):
            variable.value.assign(before + total)
        self._before.clear()


# The metrics that a tf.function, a condition or a loop updates, by their ids.
_traced: weakref.WeakValueDictionary[int, Any] = weakref.WeakValueDictionary()
# What is being traced, or run eagerly, in `strategy.run`.
_current: ContextVar[_Additions | None] = ContextVar("current", default=None)


@without_conversion
def adding_up(function: Any) -> Any:
    """Makes a replica's function of `strategy.run` add up metrics at its end.

    A tf.function stays as it is, because TensorFlow traces it in another way.
    """
    if isinstance(function, type(tf.function(len))):
        return function

    def wrapped(*args: object, **kwargs: object) -> object:
        additions = _Additions()
        token = _current.set(additions)
        try:
            result = function(*args, **kwargs)
        finally:
            _current.reset(token)
        additions.add_changes()
        return result

    return wrapped


def _update_state(original: Method, metric: Metric, *args: object, **kwargs: object) -> None:
    """Updates a metric.

    In a coordinator's steps, the parameter server adds the change; otherwise, what another worker
    adds between reading and writing would be lost.
    """
    additions = _current.get()
    replicas = is_in_replica() and sharing_of(tf.distribute.get_strategy())
    # Updates that are traced now happen whenever this step does.
    if additions:
        additions.note(metric)
        original(metric, *args, **kwargs)
        additions.note(metric, zeros=True)
    elif replicas and replicas.replicas > 1:
        adding_up(_update_state)(original, metric, *args, **kwargs)
    elif is_coordinated() and all(map(_is_stored, metric.variables)):
        _update_on_servers(original, metric, *args, **kwargs)
    else:
        if not tf.executing_eagerly() and not is_one_process():
            _traced[id(metric)] = metric
        original(metric, *args, **kwargs)


def _settled(original: Method, metric: Metric) -> object:
    """Reads or resets a metric; in `strategy.run`, it has what all replicas have added so far."""
    additions = _current.get()
    if additions:
        additions.settle(metric, original.__name__ == "reset_state")
    return original(metric)


def _update_on_servers(original: Method, metric: Metric, *args: object, **kwargs: object) -> None:
    import keras

    variables = metric.variables
    before = [tf.convert_to_tensor(variable.value) for variable in variables]
    with keras.StatelessScope(state_mapping=list(zip(variables, before))) as scope:
        original(metric, *args, **kwargs)
    for variable, old in zip(variables, before):
        new = scope.get_current_value(variable)
        variable.value.assign_add(tf.cast(new, old.dtype) - old)


def add_on_servers(original: Method, variable: Any, value: object) -> object:
    """Lets the parameter server add to a variable, which Keras would read and assign."""
    if is_coordinated() and _is_stored(variable):
        return variable.value.assign_add(tf.cast(value, variable.dtype))
    return original(variable, value)


def _is_stored(variable: Any) -> bool:
    """Returns whether a Keras variable is one of TensorFlow, not a tensor without a value."""
    return isinstance(variable.value, tf.Variable)


def patch_metrics() -> None:
    """Changes the classes of metrics, including those defined since the last call."""
    import keras

    replacements: dict[str, Method] = {
        "update_state": _update_state,
        "reset_state": _settled,
        "result": _settled,
    }
    kinds = [keras.metrics.Metric]
    for kind in kinds:
        kinds += kind.__subclasses__()  # which come later in this loop
        for owner, name in itertools.product(kind.__mro__, replacements):
            if name in vars(owner):
                private_names.replace(owner, name, replacements[name])
