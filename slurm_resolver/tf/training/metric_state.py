"""The values of metrics in the middle of an epoch: each replica has its own.

A metric's value is the sum of its parts in the replicas. A strategy adds the parts when a program
reads the metric; another split of the sum would have other last digits, so the parts are kept.
Under this package's strategy, the metrics of Keras 3 are the same in all replicas; the first part
is then the value, and the others are zero.
"""

from __future__ import annotations

import functools
from typing import Any, Callable, List, Tuple

import numpy as np
import tensorflow as tf

Rows = np.ndarray  # of float64: a row for each replica, with all values of its metrics


def read(strategy: tf.distribute.Strategy, variables: List[tf.Variable]) -> Rows:
    """Returns the values in this worker's replicas, without communication."""
    flat = [
        np.concatenate([np.ravel(part.numpy()) for part in replica])
        for replica in _replicas(strategy, variables)
    ]
    rows = np.array(flat, "float64")
    if _are_alike(variables):
        rows[1 if _first_replica(strategy) == 0 else 0 :] = 0
    return rows


def _are_alike(variables: List[tf.Variable]) -> bool:
    """Whether each replica has the value of all."""
    alike = tf.VariableAggregation.ONLY_FIRST_REPLICA
    return any(variable.aggregation == alike for variable in variables)


def _first_replica(strategy: tf.distribute.Strategy) -> int:
    """Returns the number of this worker's first replica."""
    numbers = strategy.experimental_distribute_values_from_function(
        lambda context: tf.constant(context.replica_id_in_sync_group)
    )
    return int(strategy.experimental_local_results(numbers)[0])


def _replicas(
    strategy: tf.distribute.Strategy, variables: List[tf.Variable]
) -> List[Tuple[tf.Variable, ...]]:
    """Returns the variables of each of this worker's replicas."""
    found = [strategy.experimental_local_results(variable) for variable in variables]
    count = max(map(len, found), default=0)
    return list(zip(*(parts * (count // len(parts)) for parts in found)))  # one may be for all


def gather(strategy: tf.distribute.Strategy, rows: Rows) -> Rows:
    """Returns what `read` returned in all workers; all workers call it."""
    if len(rows) in (0, strategy.num_replicas_in_sync):
        return rows
    own = iter(rows[:, np.newaxis])
    values = strategy.experimental_distribute_values_from_function(lambda _: tf.constant(next(own)))
    gathered: Rows = _gather_function(strategy)(values).numpy()
    return gathered


@functools.lru_cache(maxsize=1)
def _gather_function(strategy: tf.distribute.Strategy) -> Callable[[Any], tf.Tensor]:
    """Outside of a graph, TensorFlow would trace a new function in each call, and warn."""
    function: Callable[[Any], tf.Tensor] = tf.function(
        lambda values: strategy.gather(values, axis=0), autograph=False, reduce_retracing=True
    )
    return function


def assign(strategy: tf.distribute.Strategy, variables: List[tf.Variable], rows: Rows) -> bool:
    """Assigns each replica its row; returns False if the model has other metrics.

    With another number of replicas the first one gets the sum.
    """
    replicas = _replicas(strategy, variables)
    sizes = [variable.shape.num_elements() for variable in variables]
    if rows.shape[1:] != (sum(sizes),):
        return not variables and not rows.size
    count = strategy.num_replicas_in_sync
    if _are_alike(variables):
        rows = rows.sum(axis=0, keepdims=True).repeat(count, axis=0)
    elif len(rows) != count:
        rows = np.concatenate([rows.sum(axis=0, keepdims=True), np.zeros([count - 1, sum(sizes)])])
    first = _first_replica(strategy) if len(replicas) < count else 0
    for replica, row in zip(replicas, rows[first:]):
        for part, values in zip(replica, np.split(row, np.cumsum(sizes))):
            part.assign(values.reshape(part.shape))
    return True
