"""Small tensors are added up in half the time where workers send by gRPC.

A message there takes about as long for one number as for 32 KiB. TensorFlow's sum over N workers
passes parts of a tensor around the ring twice: 2 (N - 1) messages, one after the other. A gather
passes whole tensors around once. Each worker then adds them up in the order of the workers, so that
all have the same sum, bit for bit.
"""

from __future__ import annotations

import functools

import tensorflow as tf

from slurm_resolver.tf import private_names
from slurm_resolver.tf.private_names import Method

_MOST_BYTES = 32 * 2**10
# What TensorFlow gathers; of other types, such as bfloat16, it only adds up.
_TYPES = (tf.float16, tf.float32, tf.float64, tf.int32, tf.int64)


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
