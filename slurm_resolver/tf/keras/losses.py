"""Gradients and losses in a step: each is that of the whole batch.

The mean of the replicas' gradients, weighted by their rows, is right for every loss that is a mean
over rows. Any other loss is computed from the rows of all replicas.
"""

from __future__ import annotations

from typing import Any, Callable

import tensorflow as tf

from slurm_resolver.tf.keras.step import Step

Method = Callable[..., Any]

# Losses of Keras' own that relate a batch's rows to each other.
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
    targets = tf.nest.flatten(target)
    if step.examined is not None:
        step.examined[0].extend(map(tf.convert_to_tensor, targets))
        # What the step continues with does not matter.
        return tf.nest.map_structure(
            lambda one: 1e-3 * tf.ones_like(tf.convert_to_tensor(one)), sources
        )
    seeds = [None] * len(targets) if output_gradients is None else tf.nest.flatten(output_gradients)
    seeds = [_seed(step, one, seed) for one, seed in zip(targets, seeds)]
    found = original(tape, targets, flat, seeds, *args, **kwargs)
    means = iter(step.gradients([value for value, of in zip(found, shared) if of]))
    factor = tf.math.divide_no_nan(1.0, step.weight)
    values = [
        next(means) if of else None if value is None else value * tf.cast(factor, value.dtype)
        for value, of in zip(found, shared)
    ]
    return tf.nest.pack_sequence_as(sources, values)


def _seed(step: Step, target: Any, seed: Any) -> Any:
    """Returns what backpropagation begins with: a value for each own row is one process's.

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
    """Reduces the losses of all rows, unless it is the plain mean that every replica can take."""
    plain = mask is None and reduction in _PLAIN_MEANS
    kept = reduction in (None, "none") and not step.compiled_loss  # a value for each row
    values = tf.convert_to_tensor(values)
    if plain or kept or step.nested or values.shape.rank == 0:
        return original(values, sample_weight, mask, reduction, dtype)
    if step.examined is not None:
        return tf.zeros_like(original(values, sample_weight, mask, reduction, dtype))
    whole = [
        None if part is None else step.gather(tf.convert_to_tensor(part))
        for part in (values, sample_weight, mask)
    ]
    return step.own_gradient(original(*whole, reduction, dtype))


def compiled_loss(step: Step, original: Method, loss: Any, *args: Any, **kwargs: Any) -> Any:
    """Notes that Keras computes what `compile` was given, and takes the gradient of a vector."""
    step.compiled_loss = True
    try:
        return original(loss, *args, **kwargs)
    finally:
        step.compiled_loss = False


def additional_loss(step: Step, original: Method, model: Any, loss: Any) -> Any:
    """Adds up what `add_loss` was given for each row, of all rows."""
    if not step.is_by_row(loss):
        return original(model, loss)
    if step.examined is not None:
        return tf.zeros([], loss.dtype)
    return step.own_gradient(original(model, step.gather(loss)))


class UnknownLossError(Exception):
    """Ends a step before it computes anything, as it must be examined first."""


def add_loss(step: Step, original: Method, layer: Any, loss: Any) -> None:
    """Raises UnknownLossError where a layer adds a number; those of Keras add means over rows."""
    scalar = any(tf.convert_to_tensor(one).shape.rank == 0 for one in tf.nest.flatten(loss))
    if scalar and not step.trusted and not type(layer).__module__.startswith("keras."):
        raise UnknownLossError("add_loss of a number")
    original(layer, loss)


def loss(
    step: Step, original: Method, loss: Any, y_true: Any, y_pred: Any, sample_weight: Any = None
) -> Any:
    """Computes a loss of one's own, or one that relates rows, on the whole batch."""
    if step.nested or not sees_whole_batch(loss, "call"):
        return original(loss, y_true, y_pred, sample_weight)
    if step.examined is not None:
        return tf.zeros_like(original(loss, y_true, y_pred, sample_weight))
    whole = [step.gather_structure(part) for part in (y_true, y_pred, sample_weight)]
    with step.seeing_whole_batch():
        value = original(loss, *whole)
    return step.own_gradient(value)


def sees_whole_batch(thing: Any, method: str) -> bool:
    """Whether a loss or metric may be more than a mean of its values for each row."""
    function = getattr(thing, "fn", None) or getattr(thing, "_fn", None)
    for part in (getattr(type(thing), method), function):
        module = getattr(part, "__module__", None) or type(part).__module__
        if part is not None and not module.startswith("keras."):
            return True
    return type(thing).__name__ in _RELATING or type(function).__name__ in _RELATING
