"""How replicas put tensors together: all that is needed at once goes in a few large sums.

A replica puts its rows at their places among zeros, so that rows are gathered by a sum as well, in
the order of the whole batch, however many rows each replica has.
"""

from __future__ import annotations

from typing import NamedTuple

import tensorflow as tf

from slurm_resolver.tf.partition.values import Value


class OwnRows(NamedTuple):
    """The rows of the batch that a replica has.

    Attributes:
        total: the number of rows of the whole batch, N; an int32 tensor.
        places: the numbers of this replica's rows, int32 of shape (n,).
        own: how many these are, n; an int32 tensor.
        replica: the number of this replica.
    """

    total: tf.Tensor
    places: tf.Tensor
    own: tf.Tensor
    replica: int


def own_places(value: Value, rows: OwnRows) -> tf.Tensor:
    """Returns the places of a replica's rows along their axis, in all its blocks."""
    if value.outer == value.inner == 1:
        return rows.places
    blocks = [value.outer, rows.total, value.inner]
    places = tf.reshape(tf.range(value.outer * value.inner * rows.total), blocks)
    return tf.reshape(tf.gather(places, rows.places, axis=1), [-1])


def sent_part(tensor: tf.Tensor, value: Value, rows: OwnRows) -> tf.Tensor:
    """Returns what a replica adds to the sum: its rows are at their places among zeros.

    Args:
        tensor: its part.
        value: what this is: ROWS or SUM.
    """
    sent = as_sent(tensor)
    if not value.has_rows:
        return sent
    own = own_places(value, rows)
    # The place 0 has the zeros. They are negative, because -0.0 + 0.0 is 0.0.
    places = tf.scatter_nd(
        own[:, tf.newaxis],
        tf.range(tf.size(own)) + 1,
        [value.outer * value.inner * rows.total],
    )
    padding = tf.one_hot(value.axis, tf.rank(sent), dtype=tf.int32)[:, tf.newaxis] * [1, 0]
    zero = -0.0 if sent.dtype.is_floating else 0
    return tf.gather(
        tf.pad(
            sent,
            padding,
            constant_values=tf.constant(zero, sent.dtype),
        ),
        places,
        axis=value.axis,
    )


def received(tensor: tf.Tensor, dtype: tf.DType) -> tf.Tensor:
    """Returns a tensor that has been put together, in its own type.

    Args:
        tensor: the sum of what the replicas have sent.
    """
    if dtype.is_complex:
        return tf.complex(*tf.unstack(tensor, num=2, axis=-1))
    return tf.cast(tensor, dtype)


def as_sent(tensor: tf.Tensor) -> tf.Tensor:
    """Returns a tensor in a type that TensorFlow adds on every device.

    On GPUs it adds no bfloat16, and of integers only int64 (`CreateCollective` in
    base_collective_executor.cc). Complex numbers have one more axis.
    """
    dtype = tensor.dtype
    if dtype.is_complex:
        return tf.bitcast(tensor, dtype.real_dtype)
    if dtype == tf.bool or dtype.is_integer:
        return tf.cast(tensor, tf.int64)
    return tf.cast(tensor, tf.float64 if dtype == tf.float64 else tf.float32)
