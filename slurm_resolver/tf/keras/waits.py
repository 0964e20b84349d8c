"""Measures for how long a worker waits in its steps, for the others and for what they send."""

from __future__ import annotations

import tensorflow as tf

from slurm_resolver.tf.partition.emission import AddUp
from slurm_resolver.tf.partition.values import Tensors


def timed(add_up: AddUp, waited: tf.Variable | None) -> AddUp:
    """Returns a function that adds up tensors, and adds to `waited` the seconds that this takes.

    The time begins when all tensors have been computed, and ends when all sums have. What is sent
    while a worker still computes does not count.

    Args:
        add_up: returns the sums of tensors over all replicas.
        waited: a variable of type float64 on the CPU; None if the time is not measured.
    """
    if waited is None or not has_clock():
        return add_up

    def add_up_timed(tensors: Tensors) -> list[tf.Tensor]:
        began = _time_after(tensors)
        sums = add_up(list(tensors))
        waited.assign_add(_time_after(sums) - began)
        return sums

    return add_up_timed


def has_clock() -> bool:
    """Whether TensorFlow tells the time: not where the program has made it deterministic."""
    with tf.init_scope():
        try:
            tf.timestamp()
        except tf.errors.FailedPreconditionError:
            return False
    return True


def _time_after(tensors: Tensors) -> tf.Tensor:
    """Returns the time in seconds when all of these have been computed."""
    with tf.control_dependencies(tensors), tf.device("/cpu:0"):
        return tf.timestamp()
