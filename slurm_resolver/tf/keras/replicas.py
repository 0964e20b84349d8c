"""What the replicas of all workers do together.

A *replica* is a copy of the model on one device; a worker has one for each of its devices.
"""

from __future__ import annotations

import tensorflow as tf

from slurm_resolver.tf.keras.protocols import Strategy
from slurm_resolver.tf.keras.sharing import Structure
from slurm_resolver.tf.private_names import Method


def is_in_replica() -> bool:
    """Whether the caller is one of a strategy's replicas."""
    return tf.distribute.has_strategy() and not tf.distribute.in_cross_replica_context()


def replica_number() -> int:
    """Returns the number of the caller's replica among the replicas of all workers."""
    return int(tf.get_static_value(tf.distribute.get_replica_context().replica_id_in_sync_group))


def of_first_replica(strategy: Strategy, values: Structure) -> Structure:
    """Returns what the first replica of this worker has of values."""
    return tf.nest.map_structure(
        lambda value: strategy.experimental_local_results(value)[0], values
    )


def run_in_replicas(strategy: Strategy, function: Method, batch: Structure) -> Structure:
    """Calls a function in each replica of this worker, and returns the first one's result.

    A single replica runs without a thread, because conditions in TensorFlow's threads cannot update
    variables.
    """
    if strategy.sharing.local_replicas > 1:
        return of_first_replica(strategy, strategy.run(function, args=(batch,)))
    replica = tf.distribute.ReplicaContext(strategy, strategy.sharing.first_replica)
    with strategy.scope(), replica, tf.device(strategy.extended.worker_devices[0]):
        return function(of_first_replica(strategy, batch))
