"""What the replicas of all workers do together.

A *replica* is a copy of the model on one device; a worker has one for each of its devices.
"""

from __future__ import annotations

from collections import Counter, defaultdict

import tensorflow as tf

from slurm_resolver.tf.keras.protocols import Strategy
from slurm_resolver.tf.keras.sharing import BYTES_PER_BUCKET, Structure
from slurm_resolver.tf.partition.collectives import as_sent, received
from slurm_resolver.tf.partition.values import Tensors
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


def add_up(values: Tensors, bytes_per_bucket: int = BYTES_PER_BUCKET) -> list[tf.Tensor]:
    """Returns the sums over all replicas.

    A collective sends a bucket: the values of a type, in their order, that begin within so many
    bytes. So a full bucket is sent while the next one is still computed.
    """
    buckets: dict[tuple[tf.DType, int], dict[int, tf.Tensor]] = defaultdict(dict)
    sizes = Counter[tf.DType]()  # the bytes of each type so far
    for place, value in enumerate(values):
        # TensorFlow needs tensors that are made on this replica's device.
        sent = tf.identity(as_sent(value))
        dtype = sent.dtype
        buckets[dtype, sizes[dtype] // bytes_per_bucket][place] = sent
        sizes[dtype] += dtype.size * (sent.shape.num_elements() or 0)
    sums: dict[int, tf.Tensor] = {}
    for bucket in buckets.values():
        sums |= tf.distribute.get_replica_context().all_reduce("SUM", bucket)
    return [received(sums[place], value.dtype) for place, value in enumerate(values)]
