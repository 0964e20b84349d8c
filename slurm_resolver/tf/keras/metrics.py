"""Metrics, whose results are those of the whole batch in all replicas.

In a split step, a metric is updated with this replica's rows, and then with what all others have
added, if the analysis of the update shows that this adds up. Each replica updates other metrics
with all rows.
"""

from __future__ import annotations

import functools
from typing import Any

import tensorflow as tf

from slurm_resolver.tf import private_names
from slurm_resolver.tf.keras import metrics_in_run
from slurm_resolver.tf.keras.replica_step import Step, is_in_replica
from slurm_resolver.tf.keras.split_or_whole import ComputeWholeError, put_together, summed_as
from slurm_resolver.tf.keras.strategy_registry import is_coordinated, sharing_of
from slurm_resolver.tf.private_names import Method
from slurm_resolver.tf.rows.values import SUM, Value


def _update_state(step: Step, original: Method, metric: Any, *args: Any, **kwargs: Any) -> None:
    """Updates a metric with this replica's rows, or with those of all replicas."""
    if step.nested:
        original(metric, *args, **kwargs)
        return
    step.check_compiler()
    rows = tf.get_static_value(step.rows)
    loss = private_names.COMPILE_LOSS.of(step.model)  # None if the model is compiled without one
    if rows is not None and loss is not None and metric in loss.metrics:
        # Keras weights the loss of an output by the rows of the batch, where it knows their number.
        kwargs["sample_weight"] = int(rows)
    kinds = _kinds(step, metric, functools.partial(original, metric, *args, **kwargs))
    if kinds is None:
        what = f"an argument of the metric {metric.name!r}"
        if step.has_noted(metric):  # such as what only this replica has added
            if step.is_inside():
                raise ComputeWholeError(f"{what} in a condition or loop is not added up")
            step.add_changes()
        args, kwargs = tf.nest.map_structure(
            lambda value: put_together(step, value, what), (args, kwargs)
        )
        with step.setting("nested"):
            original(metric, *args, **kwargs)
        return
    scaled = [one for one in metric.variables if kinds.get(id(one), SUM) != SUM]
    before = [tf.convert_to_tensor(one.value) for one in scaled]
    # Of a whole batch, the first replica's value counts.
    with step.noting(metric, zeros=step.whole), step.setting("nested"):
        original(metric, *args, **kwargs)
    for one, old in zip(scaled, before):
        one.value.assign(old + step.addend(one.value - old, kinds[id(one)]))
    step.summed += metric.variables


def _kinds(step: Step, metric: Any, update: Method) -> dict[int, Value] | None:
    """Returns as what the changes of a metric's variables add up: SUM, MEAN or SAME.

    The update is traced in a graph of its own, in which the analysis of rows finds what is added to
    each variable. None if that does not add up to what one update with all rows adds.
    """
    if step.whole:
        return {}
    graph = private_names.FUNCTION_GRAPH.get()(metric.name)
    with graph.as_default(), step.setting("nested"):
        update()
    of_handles: dict[int | None, int] = {
        id(component.handle): id(variable)
        for variable in metric.variables
        for component in step.components(variable)
    }
    kinds: dict[int, Value] = {}
    for assignment in step.analysis.assigned(graph):
        kind = summed_as(assignment.added) if assignment.added else None
        variable = of_handles.get(assignment.variable)
        if kind is None or variable is None or kinds.setdefault(variable, kind) != kind:
            return None
    return kinds


def _update_outside_steps(original: Method, metric: Any, *args: Any, **kwargs: Any) -> None:
    """Updates a metric outside of a `Step`.

    In a loop of one's own, `strategy.run` adds what all replicas have added, as TensorFlow's class
    does. In a coordinator's steps, the parameter server adds the change; otherwise, what another
    worker adds between reading and writing would be lost.
    """
    replicas = is_in_replica() and sharing_of(tf.distribute.get_strategy())
    if replicas and replicas.replicas > 1:
        metrics_in_run.update_state(original, metric, *args, **kwargs)
    elif is_coordinated() and all(map(_is_stored, metric.variables)):
        _update_on_servers(original, metric, *args, **kwargs)
    else:
        original(metric, *args, **kwargs)


def _update_on_servers(original: Method, metric: Any, *args: Any, **kwargs: Any) -> None:
    import keras

    variables = metric.variables
    before = [tf.convert_to_tensor(variable.value) for variable in variables]
    with keras.StatelessScope(state_mapping=list(zip(variables, before))) as scope:
        original(metric, *args, **kwargs)
    for variable, old in zip(variables, before):
        new = scope.get_current_value(variable)
        variable.value.assign_add(tf.cast(new, old.dtype) - old)


def add_on_servers(original: Method, variable: Any, value: Any) -> Any:
    """Lets the parameter server add to a variable, which Keras would read and assign."""
    if is_coordinated() and _is_stored(variable):
        return variable.value.assign_add(tf.cast(value, variable.dtype))
    return original(variable, value)


def _is_stored(variable: Any) -> bool:
    """Returns whether a Keras variable is one of TensorFlow, not a tensor without a value."""
    return isinstance(variable.value, tf.Variable)


# By a metric's method: its replacement in a step, and elsewhere.
REPLACEMENTS: dict[str, tuple[Method, Method]] = {
    "update_state": (_update_state, _update_outside_steps),
    "reset_state": (Step.reset, metrics_in_run.reset_state),
    "result": (Step.result, metrics_in_run.result),
}
