"""Adds tensors up over the replicas of all workers: in buckets, and small ones by a gather.

Where workers send by gRPC, a message takes about as long for one number as for 32 KiB. TensorFlow's
sum over N workers passes parts of a tensor around the ring twice: 2 (N - 1) messages, one after the
other. A gather passes whole tensors around once. Each worker then adds them up in the order of the
workers, so that all have the same sum, bit for bit.
"""

from __future__ import annotations

import functools
from collections import Counter, defaultdict

import tensorflow as tf

from slurm_resolver.tf import private_names
from slurm_resolver.tf.keras.sharing import BYTES_PER_BUCKET
from slurm_resolver.tf.partition.collectives import as_sent, received
from slurm_resolver.tf.partition.values import Tensors
from slurm_resolver.tf.private_names import Method

_MOST_BYTES = 32 * 2**10
# What TensorFlow gathers; of other types, such as bfloat16, it only adds up.
_TYPES = (tf.float16, tf.float32, tf.float64, tf.int32, tf.int64)


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


def gather_small_tensors(replicas: int) -> None:
    """Lets TensorFlow's collectives add up small tensors of so many replicas by a gather."""
    if not private_names.ALL_GATHER.is_missing():
        private_names.ALL_REDUCE.replace(functools.partial(_all_reduce, replicas))


def _all_reduce(
    replicas: int,
    original: Method,
    launcher: object,
    tensor: tf.Tensor,
    *args: object,
) -> tf.Tensor:
    """Returns the sum of a tensor over all replicas.

    Args:
        launcher: TensorFlow's `CollectiveReplicaLauncher` of this replica.
        args: what the sum waits for, or None, and the CommunicationOptions.
    """
    numbers = tensor.shape.num_elements()
    is_small = numbers is not None and numbers * tensor.dtype.size <= _MOST_BYTES
    if not is_small or tensor.dtype not in _TYPES:
        return original(launcher, tensor, *args)
    gathered = private_names.ALL_GATHER.of(launcher)(tensor[tf.newaxis], *args[1:])
    return tf.add_n(tf.unstack(gathered, num=replicas))
