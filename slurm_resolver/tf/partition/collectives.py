"""How replicas put tensors together: all that is needed at once goes in a few large sums.

A replica puts its rows at their places among zeros, so that rows are gathered by a sum as well, in
the order of the whole batch, however many rows each replica has.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf

from slurm_resolver.tf.partition.values import Value

BYTES_PER_BUCKET = 25 * 2**20


class OwnRows(NamedTuple):
    """The rows of the batch that a replica has.

    Attributes:
        total: the number of rows of the whole batch, N; an int32 tensor.
        places: the numbers of this replica's rows, int32 of shape (n,).
        own: how many these are, n; an int32 tensor.
        replica: the number of this replica.
    """

    total: Any
    places: Any
    own: Any
    replica: int


class Place(NamedTuple):
    """Where a tensor is among the vectors that are summed.

    Attributes:
        vector: the number of its vector.
        position: in the vector.
        shape: of the tensor in the sum.
    """

    vector: int
    position: int
    shape: Any


class Buckets:
    """Vectors that are summed, each of one type: when one is full, the next one begins.

    A full vector can be sent while others are still computed.
    """

    def __init__(self) -> None:
        self._parts: list[list[Any]] = []
        self._lengths: list[list[Any]] = []
        self._bytes: list[int] = []
        self._open: dict[Any, int] = {}  # the vector that is being filled, by type

    def add(self, tensor: Any) -> Place:
        """Adds a tensor to a vector."""
        dtype = tensor.dtype
        number = self._open.get(dtype)
        if number is None or self._bytes[number] >= BYTES_PER_BUCKET:
            number = len(self._parts)
            self._open[dtype] = number
            self._parts.append([])
            self._lengths.append([])
            self._bytes.append(0)
        is_static = tensor.shape.is_fully_defined()
        shape = tensor.shape if is_static else tf.shape(tensor)
        length = tensor.shape.num_elements() if is_static else tf.size(tensor)
        place = Place(number, len(self._parts[number]), shape)
        self._parts[number].append(tf.reshape(tensor, [-1]))
        self._lengths[number].append(length)
        self._bytes[number] += dtype.size * length if is_static else 0
        return place

    def vectors(self) -> list[Any]:
        """Returns the vectors."""
        return [tf.concat(parts, axis=0) for parts in self._parts]

    def taken(self, sums: Sequence[Any], places: Sequence[Place]) -> list[Any]:
        """Returns tensors from the sums of the vectors."""
        parts = [
            tf.split(vector, lengths, num=len(lengths))
            for vector, lengths in zip(sums, self._lengths)
        ]
        return [tf.reshape(parts[place.vector][place.position], place.shape) for place in places]


def blocks(tensor: Any, value: Value, count: Any) -> Any:
    """Returns a tensor in which the rows have an axis of their own: outer, count, inner."""
    sizes = tf.shape(tensor)
    middle = [value.outer, count, value.inner]
    shape = tf.concat([sizes[: value.axis], middle, sizes[value.axis + 1 :]], axis=0)
    return tf.reshape(tensor, shape)


def joined_blocks(tensor: Any, axis: int) -> Any:
    """Returns a tensor whose three axes from `axis` on are one."""
    sizes = tf.shape(tensor)
    middle = tf.reduce_prod(sizes[axis : axis + 3], keepdims=True)
    shape = tf.concat([sizes[:axis], middle, sizes[axis + 3 :]], axis=0)
    return tf.reshape(tensor, shape)


def own_part(tensor: Any, value: Value, rows: OwnRows) -> Any:
    """Returns a replica's rows of a whole tensor."""
    if value.outer == value.inner == 1:
        return tf.gather(tensor, rows.places, axis=value.axis)
    places = blocks(tensor, value, rows.total)
    part = tf.gather(places, rows.places, axis=value.axis + 1)
    return joined_blocks(part, value.axis)


def sent_part(tensor: Any, value: Value, rows: OwnRows) -> Any:
    """Returns what a replica adds to the sum: rows are at their places among zeros, first of all.

    Args:
        tensor: its part.
        value: what this is: ROWS or SUM.
    """
    sent = _sent(tensor)
    if not value.has_rows:
        return sent
    sent = _first(blocks(sent, value, rows.own), value.axis + 1)
    shape = tf.concat([[rows.total], tf.shape(sent)[1:]], axis=0)
    return tf.scatter_nd(rows.places[:, tf.newaxis], sent, shape)


def received(tensor: Any, value: Value, dtype: Any) -> Any:
    """Returns a tensor that has been put together, in its own type and order of axes.

    Args:
        tensor: the sum of what the replicas have sent.
        value: what their parts were.
    """
    if value.has_rows:
        tensor = joined_blocks(_back(tensor, value.axis + 1), value.axis)
    if dtype.is_complex:
        return tf.complex(tensor[..., 0], tensor[..., 1])
    return tf.cast(tensor, dtype)


def _first(tensor: Any, axis: int) -> Any:
    """Returns a tensor with that axis as the first one."""
    order = [axis, *(one for one in range(tensor.shape.rank) if one != axis)]
    return tf.transpose(tensor, order)


def _back(tensor: Any, axis: int) -> Any:
    """Returns a tensor with its first axis at that place: the reverse of `_first`."""
    order = [axis, *(one for one in range(tensor.shape.rank) if one != axis)]
    return tf.transpose(tensor, np.argsort(order))


def _sent_type(dtype: Any) -> Any:
    """Returns a type that TensorFlow adds on every device.

    On GPUs it adds no bfloat16, and of integers only int64.
    """
    if dtype == tf.bool or dtype.is_integer:
        return tf.int64
    if dtype.is_complex:
        return tf.float32 if dtype == tf.complex64 else tf.float64
    return tf.float64 if dtype == tf.float64 else tf.float32


def _sent(tensor: Any) -> Any:
    """Returns a tensor in the type in which it is sent; complex numbers have one more axis."""
    if tensor.dtype.is_complex:
        return tf.stack([tf.math.real(tensor), tf.math.imag(tensor)], axis=-1)
    return tf.cast(tensor, _sent_type(tensor.dtype))
