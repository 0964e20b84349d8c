"""Metrics in a step, whose results are those of the whole batch.

A metric is updated with this replica's rows, and then changed by what all replicas have added, so
that it is the same in all of them. A metric that Keras does not define is updated with all rows in
each replica.
"""

from __future__ import annotations

from typing import Any, Callable, Dict, Optional, Tuple

import tensorflow as tf

from slurm_resolver.tf.keras import is_coordinated
from slurm_resolver.tf.keras.losses import sees_whole_batch
from slurm_resolver.tf.keras.step import Step

Method = Callable[..., Any]


def add_variable(
    original: Method,
    metric: Any,
    shape: Any,
    initializer: Any,
    dtype: Any = None,
    aggregation: str = "sum",
    name: Optional[str] = None,
) -> Any:
    """Makes a variable that can be read without the other workers, where it is the same in all."""
    if hasattr(tf.distribute.get_strategy(), "sharing"):
        aggregation = "only_first_replica"
    return original(metric, shape, initializer, dtype, aggregation, name)


def _update_state(step: Step, original: Method, metric: Any, *args: Any, **kwargs: Any) -> None:
    """Updates a metric with this replica's rows, or with those of all replicas."""
    value = _value(metric, args, kwargs)
    if step.examined is not None and value is not None and value.shape.rank == 0:
        step.examined[1].append(value)
    if step.nested or step.examined is not None:
        original(metric, *args, **kwargs)
        return
    if sees_whole_batch(metric, "update_state"):
        args, kwargs = step.gather_structure((args, kwargs))
        step.keep(metric.variables)
    else:
        if not getattr(metric, "_built", True):  # makes its variables, without updating them
            update = tf.function(lambda: original(metric, *args, **kwargs), autograph=False)
            update.get_concrete_function()
        step.change(metric.variables)
        if value is not None and len(args) < 2 and kwargs.get("sample_weight") is None:
            # A number, such as a mean loss, counts by this replica's rows.
            share = tf.cast(step.count / step.rows, tf.float32)
            share = tf.where(step.is_of_own_rows(value), 1.0, share)
            args, kwargs = (value,), {"sample_weight": tf.fill(tf.shape(value)[:1], share)}
    with step.seeing_whole_batch():
        original(metric, *args, **kwargs)


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
    if not step.nested and step.examined is None:
        step.add_changes()
    result = tf.nest.map_structure(tf.convert_to_tensor, original(metric))
    step.remember_alike(result)
    return result


def _reset_state(step: Step, original: Method, metric: Any) -> None:
    original(metric)
    step.keep(metric.variables)


def _update(original: Method, metric: Any, *args: Any, **kwargs: Any) -> None:
    """Updates a metric outside of a `Step`; in a coordinator's steps, it adds the change at once.

    What another worker adds between reading and writing would be lost.
    """
    import keras

    variables = metric.variables
    if not is_coordinated() or not all(map(_is_stored, variables)):
        original(metric, *args, **kwargs)
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


# By the method of a metric: what replaces it in a step, and elsewhere.
REPLACEMENTS: Dict[str, Tuple[Method, Optional[Method]]] = {
    "update_state": (_update_state, _update),
    "reset_state": (_reset_state, None),
    "result": (_result, None),
}
