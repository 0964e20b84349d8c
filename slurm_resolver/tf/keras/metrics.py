"""Metrics in a step, whose results are those of the whole batch.

A metric's variables hold the sums of this replica's rows; results are computed from the sums over
all replicas. A metric that Keras does not define is updated with all rows in each replica.
"""

from __future__ import annotations

from typing import Any, Callable, Dict, Sequence, Tuple

import tensorflow as tf

from slurm_resolver.tf.keras import is_coordinated
from slurm_resolver.tf.keras.losses import sees_whole_batch
from slurm_resolver.tf.keras.step import Step, run_in_replicas

Method = Callable[..., Any]


def _update_state(step: Step, original: Method, metric: Any, *args: Any, **kwargs: Any) -> None:
    """Updates a metric with this replica's rows, or with those of all replicas."""
    value = _value(metric, args, kwargs)
    if step.examined is not None and value is not None and value.shape.rank == 0:
        step.examined[1].append(value)
    if step.nested or step.examined is not None:
        original(metric, *args, **kwargs)
        return
    step.forget(metric.variables)
    whole = sees_whole_batch(metric, "update_state")
    if whole:
        args, kwargs = step.gather_structure((args, kwargs))
        for variable in metric.variables:
            variable._same_in_replicas = True
    elif value is not None and len(args) < 2 and kwargs.get("sample_weight") is None:
        # A number, such as a mean loss, counts by this replica's rows.
        share = tf.cast(step.count / step.rows, tf.float32)
        share = tf.where(step.is_of_own_rows(value), 1.0, share)
        args, kwargs = (value,), {"sample_weight": tf.fill(tf.shape(value)[:1], share)}
    before = {id(one): tf.convert_to_tensor(one.value) for one in metric.variables}
    with step.seeing_whole_batch():
        original(metric, *args, **kwargs)
    if whole or step.counts is True:
        return
    for variable in metric.variables:  # some metrics make them in their first update
        new = tf.convert_to_tensor(variable.value)
        old = before.get(id(variable), tf.zeros_like(new))
        variable.value.assign(tf.where(step.counts, new, old))


def _value(metric: Any, args: Any, kwargs: Any) -> Any:
    """Returns the tensor that one of Keras' means or sums is updated with; None for other ones."""
    import keras

    plain = isinstance(metric, (keras.metrics.Mean, keras.metrics.Sum))
    if not plain or isinstance(metric, keras.metrics.MeanMetricWrapper):
        return None
    value = args[0] if args else kwargs.get("values")
    return None if value is None else tf.identity(value)


def _result(step: Step, original: Method, metric: Any) -> Any:
    """Returns a metric's result on the rows of all replicas."""
    if step.examined is not None:
        result = original(metric)
        step.remember_alike(result)
        return result
    if step.nested:
        return original(metric)
    own = metric.variables
    sums = step.sum_variables({id(v): v for v in [*step.model.metrics_variables, *own]}.values())
    with step.seeing_whole_batch():
        result = _result_of(original, metric, [sums[id(variable)] for variable in own])
    step.remember_alike(result)
    return result


def _result_of(original: Method, metric: Any, state: Sequence[Any]) -> Any:
    """Returns the result that a metric has with other values of its variables."""
    import keras

    with keras.StatelessScope(state_mapping=list(zip(metric.variables, state))):
        return tf.nest.map_structure(tf.convert_to_tensor, original(metric))


def _change(original: Method, metric: Any, *args: Any, **kwargs: Any) -> Any:
    """Changes a metric outside of steps, where the sums of the last step are no longer its."""
    for variable in metric.variables:
        vars(variable).pop("_sum_of_replicas", None)
    return original(metric, *args, **kwargs)


def _reset(original: Method, metric: Any) -> None:
    """Resets each replica's variables; elsewhere TensorFlow would add them up over all workers."""
    variables = metric.variables
    strategy = getattr(variables[0].value, "distribute_strategy", None) if variables else None
    if hasattr(strategy, "sharing"):
        run_in_replicas(strategy, lambda: _change(original, metric))
    else:
        _change(original, metric)


def _change_in_step(step: Step, original: Method, metric: Any, *args: Any, **kwargs: Any) -> Any:
    step.forget(metric.variables)
    return original(metric, *args, **kwargs)


def _read_result(original: Method, metric: Any) -> Any:
    sums = [vars(variable).get("_sum_of_replicas") for variable in metric.variables]
    if not sums or any(total is None for total in sums):
        return original(metric)
    return _result_of(original, metric, sums)


def _update(original: Method, metric: Any, *args: Any, **kwargs: Any) -> None:
    """Updates a metric outside of a `Step`; in a coordinator's steps, it adds the change at once.

    What another worker adds between reading and writing would be lost.
    """
    import keras

    variables = metric.variables
    if not is_coordinated() or not all(map(_is_stored, variables)):
        _change(original, metric, *args, **kwargs)
        return
    before = [tf.convert_to_tensor(variable.value) for variable in variables]
    with keras.StatelessScope(state_mapping=list(zip(variables, before))) as scope:
        original(metric, *args, **kwargs)
    for variable, old in zip(variables, before):
        new = scope.get_current_value(variable)
        if new is not None and new is not old:
            variable.value.assign_add(tf.cast(new, old.dtype) - old)


def add_at_once(original: Method, variable: Any, value: Any) -> Any:
    """Has the parameter server add to a Keras variable, which Keras reads and assigns."""
    if is_coordinated() and _is_stored(variable):
        return variable.value.assign_add(tf.cast(value, variable.dtype))
    return original(variable, value)


def _is_stored(variable: Any) -> bool:
    """Whether a Keras variable is one of TensorFlow's now, not a tensor to learn shapes from."""
    return isinstance(variable.value, tf.Variable)


REPLACEMENTS: Dict[str, Tuple[Method, Method]] = {
    "update_state": (_update_state, _update),
    "reset_state": (_change_in_step, _reset),
    "result": (_result, _read_result),
}
