"""Gradients, losses and metrics in a step, which are those of the whole batch.

The mean of the replicas' gradients, weighted by their rows, is right for every loss that is a mean
over rows. Any other loss is computed from the rows of all replicas.

A metric is updated with this replica's rows, and then with what all others have added, so that it
is the same in all replicas. Each replica updates a custom metric with all rows.
"""

from __future__ import annotations

from typing import Any, Callable, Dict, List, Optional, Tuple

import tensorflow as tf

from slurm_resolver.errors import FitError
from slurm_resolver.tf.keras import borrowed, is_coordinated
from slurm_resolver.tf.keras.step import Step

Method = Callable[..., Any]

# Keras' losses that compare the rows of a batch.
_RELATING = ("Dice", "Tversky", "Circle")
_PLAIN_MEANS = ("sum_over_batch_size", "mean")


def gradient(
    step: Step,
    original: Method,
    tape: Any,
    target: Any,
    sources: Any,
    output_gradients: Any = None,
    *args: Any,
    **kwargs: Any,
) -> Any:
    """Returns gradients of variables as means over the rows of all replicas."""
    flat = tf.nest.flatten(sources)
    shared = [_is_variable(source) for source in flat]
    if not any(shared):
        return original(tape, target, sources, output_gradients, *args, **kwargs)
    if any(getattr(source, "overwrite_with_gradient", False) for source in flat):
        raise FitError(
            f"the model {step.model.name!r} trains in float8, whose scales are not gradients that "
            "can be averaged over the workers. Use mixed_bfloat16, or one process"
        )
    targets = tf.nest.flatten(target)
    seeds = [None] * len(targets) if output_gradients is None else tf.nest.flatten(output_gradients)
    seeds = [_seed(step, one, seed) for one, seed in zip(targets, seeds)]
    found = original(tape, targets, flat, seeds, *args, **kwargs)
    factor = tf.math.divide_no_nan(1.0, step.weight)
    values: List[Any] = [
        value if value is None or of else value * tf.cast(factor, value.dtype)
        for value, of in zip(found, shared)
    ]
    places = [place for place, of in enumerate(shared) if of and found[place] is not None]
    sums = step.add([step.unless_empty(found[place]) for place in places])
    for place, total in zip(places, sums):
        values[place] = total
    return tf.nest.pack_sequence_as(sources, values)


def _seed(step: Step, target: Any, seed: Any) -> Any:
    """Returns the start of backpropagation: a value for each of this replica's rows is unchanged.

    Everything else is a mean over rows, or the same in all replicas.
    """
    value = tf.convert_to_tensor(target)
    ones = tf.ones_like(value) if seed is None else seed
    weight = tf.where(step.is_of_own_rows(value), 1.0, step.weight)
    return ones * tf.cast(weight, value.dtype)


def _is_variable(source: Any) -> bool:
    return any(isinstance(one, tf.Variable) for one in (source, getattr(source, "value", None)))


def reduce_weighted_values(
    step: Step,
    original: Method,
    values: Any,
    sample_weight: Any = None,
    mask: Any = None,
    reduction: Any = "sum_over_batch_size",
    dtype: Any = None,
) -> Any:
    """Reduces the losses of all rows, unless the reduction is a plain mean over rows."""

    def reduce(values: Any, sample_weight: Any, mask: Any) -> Any:
        return original(values, sample_weight, mask, reduction, dtype)

    plain = mask is None and reduction in _PLAIN_MEANS
    kept = reduction in (None, "none") and not step.compiled_loss  # a value for each row
    parts: List[Any] = [
        None if part is None else tf.convert_to_tensor(part)
        for part in (values, sample_weight, mask)
    ]
    if plain or kept or step.nested or parts[0].shape.rank == 0:
        return reduce(*parts)
    return step.loss_of_all_rows(reduce, *parts)


def compiled_loss(step: Step, original: Method, loss: Any, *args: Any, **kwargs: Any) -> Any:
    """Notes that Keras computes the loss of `compile`, and allows the gradient of a vector."""
    with step.setting("compiled_loss"):
        return original(loss, *args, **kwargs)


def additional_loss(step: Step, original: Method, model: Any, loss: Any) -> Any:
    """Adds up the values by row of `add_loss`, for all rows."""
    if not step.is_by_row(loss):
        return original(model, loss)
    return step.loss_of_all_rows(lambda values: original(model, values), loss)


class UnknownLossError(Exception):
    """Ends the tracing of a step that adds a number, which may not be a mean over rows."""


def add_loss(step: Step, original: Method, layer: Any, loss: Any) -> None:
    """Raises UnknownLossError if custom code adds a number; Keras' layers add means."""
    scalar = any(tf.convert_to_tensor(one).shape.rank == 0 for one in tf.nest.flatten(loss))
    unknown = scalar and step.means_only and is_custom(layer)
    if unknown and not borrowed.IN_STATELESS_SCOPE.get()():  # not while Keras only infers shapes
        raise UnknownLossError("add_loss of a number")
    original(layer, loss)


def is_custom(layer: Any) -> bool:
    """Whether a layer, or its regularizer of activities, is not one of Keras."""
    parts = (layer, getattr(layer, "activity_regularizer", None) or layer)
    return not all(type(part).__module__.startswith("keras.") for part in parts)


def loss(
    step: Step, original: Method, loss: Any, y_true: Any, y_pred: Any, sample_weight: Any = None
) -> Any:
    """Computes a custom loss, or one that compares rows, on the whole batch."""
    if step.nested or not sees_whole_batch(loss, "call"):
        return original(loss, y_true, y_pred, sample_weight)
    return step.loss_of_all_rows(
        lambda *whole: original(loss, *whole), y_true, y_pred, sample_weight
    )


def sees_whole_batch(thing: Any, method: str) -> bool:
    """Whether a loss or metric may be more than a mean of its values for each row."""
    function = borrowed.LOSS_FUNCTION.of(thing, None) or borrowed.METRIC_FUNCTION.of(thing, None)
    for part in (getattr(type(thing), method), function):
        module = getattr(part, "__module__", None) or type(part).__module__
        if part is not None and not module.startswith("keras."):
            return True
    return type(thing).__name__ in _RELATING or type(function).__name__ in _RELATING


def add_variable(
    original: Method,
    metric: Any,
    shape: Any,
    initializer: Any,
    dtype: Any = None,
    aggregation: str = "sum",
    name: Optional[str] = None,
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
    whole = sees_whole_batch(metric, "update_state")
    if whole:
        args, kwargs = step.gather_structure((args, kwargs))
    else:
        step.change(metric.variables)
        of_numbers = isinstance(metric, (keras.metrics.Mean, keras.metrics.Sum))
        of_numbers = of_numbers and not isinstance(metric, keras.metrics.MeanMetricWrapper)
        if of_numbers and len(args) < 2 and kwargs.get("sample_weight") is None:
            # A number, such as a mean loss, counts by this replica's rows.
            value = tf.identity(args[0] if args else kwargs["values"])
            share = tf.cast(step.count / step.rows, tf.float32)
            share = tf.where(step.is_of_own_rows(value), 1.0, share)
            args = (value,)
            kwargs = {"sample_weight": tf.fill(tf.shape(value)[:1], share)}
    with step.setting("nested"):
        original(metric, *args, **kwargs)
    if not whole:
        step.change(metric.variables, made=True)


def _result(step: Step, original: Method, metric: Any) -> Any:
    """Returns a metric's result on the rows of all replicas."""
    if not step.nested:
        step.add_changes()
    result = tf.nest.map_structure(tf.convert_to_tensor, original(metric))
    step.alike.update((id(leaf), leaf) for leaf in tf.nest.flatten(result))
    return result


def _reset_state(step: Step, original: Method, metric: Any) -> None:
    original(metric)
    step.keep(metric.variables)


def _update(original: Method, metric: Any, *args: Any, **kwargs: Any) -> None:
    """Updates a metric outside of a `Step`; in a coordinator's steps, it adds the change at once.

    Otherwise, what another worker adds between reading and writing would be lost.
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
    """Lets the parameter server add to a variable, which Keras would read and assign."""
    if is_coordinated() and _is_stored(variable):
        return variable.value.assign_add(tf.cast(value, variable.dtype))
    return original(variable, value)


def _is_stored(variable: Any) -> bool:
    """Returns whether a Keras variable is one of TensorFlow, not a tensor without a value."""
    return isinstance(variable.value, tf.Variable)


# By a metric's method: its replacement in a step, and elsewhere.
REPLACEMENTS: Dict[str, Tuple[Method, Optional[Method]]] = {
    "update_state": (_update_state, _update),
    "reset_state": (_reset_state, None),
    "result": (_result, None),
}
