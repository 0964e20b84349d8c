"""Each worker's share of a global batch.

Every worker reads the same batches and keeps its own rows. TensorFlow splits a dataset by elements:
only some workers get a shorter last batch, and the data of a generator is not split at all.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import tensorflow as tf

from slurm_resolver.tf.keras import borrowed
from slurm_resolver.tf.keras.origins import Origin, find_origins, serialized_graph

_DIGESTS = 2**24 - 3  # exact as float32
_SMALL = 16  # numbers in a row, up to which all rows are compared
FINGERPRINT = 3  # numbers in the fingerprint of a tensor


class Share(NamedTuple):
    """A global batch as every worker reads it, with the fingerprints of its tensors.

    The digest is a float32 tensor of shape (tensors with rows, FINGERPRINT).
    """

    digest: Any
    batch: Any


class Sharing(NamedTuple):
    """How batches are split: this worker's first replica, its replicas, and all replicas."""

    first: int
    local: int
    replicas: int


def share(batch: Any, origins: Sequence[Origin] | None = None) -> Share:
    """Returns a batch with the fingerprints of its tensors, by default of equal ones."""
    values = tf.nest.flatten(batch)
    if origins is None:
        origins = [Origin.EQUAL] * len(values)
    found = [fingerprint(*each) for each in zip(values, origins) if _has_rows(each[0])]
    return Share(tf.stack(found) if found else tf.zeros([0, FINGERPRINT]), batch)


def fingerprint(value: Any, origin: Origin) -> Any:
    """Returns a digest of a tensor, whether it tells rows apart, and its origin, as float32.

    The digest is of the first and the last row, or of all rows if they are small.
    """
    first = []
    last = []
    compared = []
    for part in tf.nest.flatten(value, expand_composites=True):
        size = part.shape[1:].num_elements() if part.shape.rank else 1
        first.append(tf.io.serialize_tensor(part[:1]))
        last.append(tf.io.serialize_tensor(part[-1:]))
        if size is not None and size <= _SMALL:
            compared.append(tf.io.serialize_tensor(part))
    text = tf.strings.join(compared or [*first, *last])
    digest = tf.cast(tf.strings.to_hash_bucket_fast(text, _DIGESTS), tf.float32)
    return tf.stack(
        [digest, tf.cast(tf.not_equal(first[0], last[0]), tf.float32), tf.constant(float(origin))]
    )


def names_of_tensors(batch: Any) -> list[str]:
    """Returns the part of each tensor that has rows, such as "x", in the fingerprints' order."""
    parts = batch if isinstance(batch, tuple) else (batch,)
    return [
        name
        for part, name in zip(parts, ("x", "y", "sample_weight"))
        for value in tf.nest.flatten(part)
        if _has_rows(value)
    ]


def share_dataset(dataset: tf.data.Dataset) -> tf.data.Dataset | None:
    """Returns the dataset of shares, with the given one as its attribute `whole_batches`.

    None stands for a dataset from which each worker reads its own files or data, or batches of a
    tf.data service.
    """
    graph = serialized_graph(dataset)
    policy = tf.data.experimental.AutoShardPolicy
    of_dataset = dataset.options().experimental_distribute.auto_shard_policy
    if of_dataset not in (policy.AUTO, policy.DATA) or b"DataServiceDataset" in graph:
        return None
    generated = b"GeneratorDataset" in graph
    while generated and isinstance(dataset, borrowed.PREFETCHED.get()):
        (dataset,) = borrowed.INPUTS.of(dataset)()
    single = not isinstance(dataset.element_spec, tuple)
    origins = find_origins(dataset)

    def shared(*elements: Any) -> Share:
        return share(elements[0] if single else elements, origins)

    shares = dataset.map(shared)
    # The next reader of a generator does not get the batches that were read ahead. Their number is
    # random, so the workers would be at different batches.
    if not generated:
        shares = shares.prefetch(tf.data.AUTOTUNE)
    shares.whole_batches = dataset
    return shares


def count_rows(batch: Any) -> Any:
    """Returns the number of a batch's rows: an int where it is known, else an int32 tensor."""
    for value in filter(_has_rows, tf.nest.flatten(batch)):
        static = value.shape[0] if value.shape.rank else None
        return tf.cast(tf.shape(value)[0], tf.int32) if static is None else int(static)
    return 1


def have_other_rows(batch: Any) -> Any:
    """Returns whether the first dimensions of a batch's tensors differ: a bool, or a tensor."""
    values = list(filter(_has_rows, tf.nest.flatten(batch)))
    known = {value.shape[0] if value.shape.rank else None for value in values}
    if len(values) < 2 or known != {None}:
        return len(known) > 1
    sizes = tf.stack([tf.cast(tf.shape(value)[0], tf.int32) for value in values])
    return tf.reduce_any(tf.not_equal(sizes, sizes[0]))


def part_of_batch(batch: Any, start: Any, stop: Any) -> Any:
    """Returns some rows of each of a batch's tensors."""

    def part(value: Any) -> Any:
        if not _has_rows(value):
            return value
        if not isinstance(value, tf.SparseTensor):
            return value[start:stop]
        begin = tf.concat([[start], tf.zeros_like(value.dense_shape[1:], tf.int32)], axis=0)
        size = tf.concat([[stop - start], tf.cast(value.dense_shape[1:], tf.int32)], axis=0)
        rows = tf.sparse.slice(value, tf.cast(begin, tf.int64), tf.cast(size, tf.int64))
        rows.set_shape([None, *value.shape[1:]])
        return rows

    return tf.nest.map_structure(part, batch)


def without_optionals(batch: Any) -> Any:
    """Returns a batch with None for what Keras has left out, such as sample weights."""
    return tf.nest.map_structure(
        lambda value: None if isinstance(value, tf.experimental.Optional) else value, batch
    )


def _has_rows(value: Any) -> bool:
    return (
        isinstance(value, (tf.Tensor, tf.RaggedTensor, tf.SparseTensor)) and value.shape.rank != 0
    )
