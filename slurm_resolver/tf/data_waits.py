"""Measures in the graph of a step how long the step waits for data.

Python does not run between the steps of a `tf.function` that takes several. So the graph notes in
variables when it asks for data and when it gets them; `tf.progress` reads them.
"""

from __future__ import annotations

import time
from typing import Any, Callable

import tensorflow as tf

from slurm_resolver.tf import private_names

# When the running step asked for data, negative when it got them; and the seconds waited in all.
_variables: list[tf.Variable] = []


def start() -> None:
    """Makes the variables: graphs that are traced from now on measure."""
    with tf.init_scope(), tf.device("/cpu:0"):
        _variables.extend(tf.Variable(0.0, dtype=tf.float64) for _ in range(2))


def read() -> list[float]:
    """Returns the values of the variables; zeros before `start`."""
    return [float(variable.numpy()) for variable in _variables] or [0.0, 0.0]


def timed(get: Callable[[], Any]) -> Any:
    """Returns the result of `get`, which reads an iterator in a graph, and measures its time."""
    if not _variables:
        return get()
    mark, waited = _variables
    with tf.device("/cpu:0"):
        asked_at = _now()
        noted = mark.assign(asked_at)
    with tf.control_dependencies([noted]):
        batch = get()
    tensors = tf.nest.flatten(batch, expand_composites=True)
    with tf.device("/cpu:0"), tf.control_dependencies(tensors[:1]):
        came_at = _now()
        waited.assign_add(came_at - asked_at)
        mark.assign(-came_at)
    return batch


def _now() -> Any:
    """Returns a tensor: the time in seconds.

    After `enable_op_determinism`, TensorFlow refuses `tf.timestamp`, which takes less time than a
    function of Python.
    """
    if private_names.IS_DETERMINISTIC.get()():
        return tf.numpy_function(time.time, inp=[], Tout=tf.float64)
    return tf.timestamp()
