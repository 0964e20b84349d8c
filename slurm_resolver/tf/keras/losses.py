"""Losses in a split step, which are those of the whole batch.

A loss that is a mean over rows is computed from this replica's rows: the mean of all replicas'
gradients, weighted by their rows, is right for it. A sum is turned into such a mean. Any other loss
is computed from the predictions and labels of all replicas.
"""

from __future__ import annotations

from typing import Any

import tensorflow as tf

from slurm_resolver.tf.keras.replica_step import Step
from slurm_resolver.tf.keras.split_or_whole import ComputeWholeError, put_together, value_of
from slurm_resolver.tf.private_names import Method
from slurm_resolver.tf.rows.values import MEAN


def loss_in_step(
    step: Step, original: Method, loss: Any, y_true: Any, y_pred: Any, sample_weight: Any = None
) -> Any:
    """Returns a loss of the whole batch, or one of this replica's rows that stands for it."""
    parts = (y_true, y_pred, sample_weight)
    found = original(loss, *parts)
    if step.whole or step.nested:
        return found
    try:
        return as_mean(step, found, "a loss", certain=True)
    except ComputeWholeError:
        gathered = tf.nest.map_structure(
            lambda part: put_together(step, part, "an argument of a loss", adds=False), parts
        )
    with step.setting("nested"):
        whole = original(loss, *gathered)
    # Its gradient is that of this replica's rows, and is weighted as all gradients are.
    factor = tf.cast(step.inverse_weight - 1, whole.dtype)
    return step.declare(whole + factor * (whole - tf.stop_gradient(whole)), MEAN)


def as_mean(step: Step, loss: Any, what: str, *, certain: bool = False) -> Any:
    """Returns a loss; a sum over this replica's rows becomes their part of a mean over rows.

    A loss of the whole batch stays as it is.

    Args:
        certain: whether to raise ComputeWholeError also for what could be assumed.
    """
    if step.whole:
        return loss
    value = value_of(step, loss, what, certain=certain)
    if not value.is_sum:
        return loss
    return step.declare(loss * tf.cast(step.inverse_weight, loss.dtype), MEAN)


def additional_loss(step: Step, original: Method, model: Any, loss: Any) -> Any:
    """Returns the sum of what a layer has given to `add_loss`."""
    return as_mean(step, original(model, loss), "a loss of add_loss")
