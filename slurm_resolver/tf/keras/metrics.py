"""Metrics, whose results are those of the whole batch in all replicas.

In a split step, a metric of Keras is updated with this replica's rows, and then with what all
others have added. Each replica updates a custom metric with all rows.
"""

from __future__ import annotations

from contextvars import ContextVar
from typing import Any, Callable

import tensorflow as tf

from slurm_resolver.tf.keras import borrowed, is_coordinated
from slurm_resolver.tf.keras.step import Step, add_up, is_in_replica
from slurm_resolver.tf.keras.verdicts import known, refuse, together
from slurm_resolver.tf.rows.values import SAME, Kind

Method = Callable[..., Any]

# Whether `_update_in_replicas` is updating a metric.
_nested: ContextVar[bool] = ContextVar("nested", default=False)


def add_variable(
    original: Method,
    metric: Any,
    shape: Any,
    initializer: Any,
    dtype: Any = None,
    aggregation: str = "sum",
    name: str | None = None,
) -> Any:
    """Makes a variable that is the same in all workers, so that one worker alone can read it."""
    if hasattr(tf.distribute.get_strategy(), "sharing"):
        aggregation = "only_first_replica"
    return original(metric, shape, initializer, dtype, aggregation, name)


def _update_state(step: Step, original: Method, metric: Any, *args: Any, **kwargs: Any) -> None:
    """Updates a metric with this replica's rows, or with those of all replicas."""
    import keras

    if step.nested:
        original(metric, *args, **kwargs)
        return
    alone = False  # whether each replica adds its own rows
    if not step.whole:
        owner = next(kind for kind in type(metric).__mro__ if "update_state" in vars(kind))
        if _is_custom(metric):
            args, kwargs = tf.nest.map_structure(
                lambda value: together(step, value, f"an argument of {metric.name!r}"),
                (args, kwargs),
            )
        elif owner in (keras.metrics.Mean, keras.metrics.Sum):
            args = _number(step, metric, *args, **kwargs)
            kwargs = {}
            alone = True
        else:
            _check_rows(step, metric, tf.nest.flatten((args, kwargs)))
            alone = True
    if alone or step.whole:
        step.change(metric.variables)
    with step.setting("nested"):
        original(metric, *args, **kwargs)
    if alone or step.whole:
        step.change(metric.variables, made=True)


def _is_custom(metric: Any) -> bool:
    """Whether a metric has code that is not Keras'; that of Keras only adds up its rows."""
    function = borrowed.METRIC_FUNCTION.of(metric, None)
    for part in (type(metric).update_state, function):
        module = getattr(part, "__module__", None) or type(part).__module__
        if part is not None and not module.startswith("keras."):
            return True
    return False


def _check_rows(step: Step, metric: Any, values: Any) -> None:
    """Raises ComputeWholeError unless a metric of Keras gets tensors of the same rows."""
    what = f"an argument of the metric {metric.name!r}"
    layouts = set()
    for value in filter(tf.is_tensor, values):
        found = known(step, value, what)
        by_row = found.kind is Kind.ROWS and not found.axis and not found.power
        layouts.update([found.layout] if by_row else [])
        if len(layouts) > 1 or not (by_row or (found.is_plain and value.shape.rank == 0)):
            raise refuse(what, found)


def _number(step: Step, metric: Any, values: Any, sample_weight: Any = None) -> tuple[Any, Any]:
    """Returns a value and its weight, which all replicas add up to those of the whole batch."""
    what = f"the number given to the metric {metric.name!r}"
    values = tf.convert_to_tensor(values)
    value = known(step, values, what)
    weight = SAME
    if sample_weight is not None:
        sample_weight = tf.convert_to_tensor(sample_weight)
        weight = known(step, sample_weight, what, certain=step.analysis is not None)
    counts = weight.kind is Kind.NUMBERS and weight.power_of_numbers == 1
    by_row = value.kind is Kind.ROWS and not value.power
    weighted = weight.is_plain or (not weight.power and weight.layout == value.layout)
    if (by_row and weighted) or (value.is_mean and counts):
        return values, sample_weight
    is_sum = value.kind is Kind.SUM and not value.power
    if not weight.is_plain or not (value.is_plain or value.is_mean or is_sum):
        raise refuse(what, value if weight.is_plain else weight)
    if is_sum:
        values *= tf.cast(tf.math.divide_no_nan(1.0, step.share), values.dtype)
    if sample_weight is None:
        return values, tf.fill(tf.shape(values)[:1], step.share)
    return values, sample_weight * tf.cast(step.share, sample_weight.dtype)


def _result(step: Step, original: Method, metric: Any) -> Any:
    """Returns a metric's result on the rows of all replicas."""
    if not step.nested:
        step.add_changes()
    result = tf.nest.map_structure(tf.convert_to_tensor, original(metric))
    return step.declare(result, SAME)


def _reset_state(step: Step, original: Method, metric: Any) -> None:
    original(metric)
    step.keep(metric.variables)


def _update(original: Method, metric: Any, *args: Any, **kwargs: Any) -> None:
    """Updates a metric outside of a `Step`.

    In a loop of one's own, `strategy.run` adds what all replicas have added, as TensorFlow's class
    does. In a coordinator's steps, the parameter server adds the change; otherwise, what another
    worker adds between reading and writing would be lost.
    """
    replicas = is_in_replica() and getattr(tf.distribute.get_strategy(), "sharing", None)
    if replicas and replicas.replicas > 1 and not _nested.get():
        _update_in_replicas(original, metric, *args, **kwargs)
    elif is_coordinated() and all(map(_is_stored, metric.variables)):
        _update_at_once(original, metric, *args, **kwargs)
    else:
        original(metric, *args, **kwargs)


def _update_in_replicas(original: Method, metric: Any, *args: Any, **kwargs: Any) -> None:
    before = {id(one): tf.convert_to_tensor(one.value) for one in metric.variables}
    token = _nested.set(True)  # a metric of Keras calls the method of its base class
    try:
        original(metric, *args, **kwargs)
    finally:
        _nested.reset(token)
    variables = metric.variables
    old = [before.get(id(one), tf.zeros(one.shape, one.dtype)) for one in variables]
    changes = [one.value - value for one, value in zip(variables, old)]
    for variable, value, total in zip(variables, old, add_up(changes)):
        variable.value.assign(value + total)


def _update_at_once(original: Method, metric: Any, *args: Any, **kwargs: Any) -> None:
    import keras

    variables = metric.variables
    before = [tf.convert_to_tensor(variable.value) for variable in variables]
    with keras.StatelessScope(state_mapping=list(zip(variables, before))) as scope:
        original(metric, *args, **kwargs)
    for variable, old in zip(variables, before):
        new = scope.get_current_value(variable)
        if new is not None and new is not old:
            variable.value.assign_add(tf.cast(new, old.dtype) - old)


def add_at_once(original: Method, variable: Any, value: Any) -> Any:
    """Lets the parameter server add to a variable, which Keras would read and assign."""
    if is_coordinated() and _is_stored(variable):
        return variable.value.assign_add(tf.cast(value, variable.dtype))
    return original(variable, value)


def _is_stored(variable: Any) -> bool:
    """Returns whether a Keras variable is one of TensorFlow, not a tensor without a value."""
    return isinstance(variable.value, tf.Variable)


# By a metric's method: its replacement in a step, and elsewhere.
REPLACEMENTS: dict[str, tuple[Method, Method | None]] = {
    "update_state": (_update_state, _update),
    "reset_state": (_reset_state, None),
    "result": (_result, None),
}
