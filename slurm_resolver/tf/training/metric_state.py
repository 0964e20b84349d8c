"""The values of metrics in the middle of an epoch: each replica has its own."""

from __future__ import annotations

from typing import Any, Callable, List

import numpy as np
import tensorflow as tf


def read(strategy: tf.distribute.Strategy, variables: List[tf.Variable]) -> Any:
    """Returns each replica's values, one after the other as float64, without communication.

    A metric's variables are sums whose parts lie in the replicas. Read together they would be
    added up, and another split of the sum ends in other last digits.
    """

    def own() -> tf.Tensor:
        flat = [tf.reshape(tf.cast(variable, tf.float64), [-1]) for variable in variables]
        return tf.concat([tf.zeros([0], tf.float64), *flat], axis=0)[tf.newaxis]

    return _run(strategy, own)


def gather(strategy: tf.distribute.Strategy, values: Any) -> np.ndarray:
    """Returns what `read` gave, of all replicas in all workers: [replicas, numbers]."""
    rows: np.ndarray = strategy.gather(values, axis=0).numpy()
    return rows


def assign(
    strategy: tf.distribute.Strategy, variables: List[tf.Variable], rows: np.ndarray
) -> bool:
    """Gives each replica its values again, and returns whether there are as many as were read."""
    sizes = [variable.shape.num_elements() for variable in variables]
    if sum(sizes) != rows.shape[1]:
        return False
    if len(rows) != strategy.num_replicas_in_sync:  # another number of workers
        total = rows.sum(axis=0)
        rows = np.zeros([strategy.num_replicas_in_sync, len(total)])
        rows[0] = total

    def own() -> None:
        replica = tf.distribute.get_replica_context().replica_id_in_sync_group
        parts = tf.split(tf.gather(rows, replica), sizes)
        for variable, part in zip(variables, parts):
            variable.assign(tf.cast(tf.reshape(part, variable.shape), variable.dtype))

    _run(strategy, own)
    return True


def _run(strategy: tf.distribute.Strategy, own: Callable[[], Any]) -> Any:
    """Runs a function on all replicas, in a graph: TensorFlow warns of the other way."""
    return tf.function(lambda: strategy.run(own), autograph=False)()
