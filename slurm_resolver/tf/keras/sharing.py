"""Each worker's share of a global batch.

Every worker reads the same batches and keeps its own rows. TensorFlow splits a dataset by elements:
only some workers get a shorter last batch, and the data of a generator is not split at all.
"""

from __future__ import annotations

import re
from typing import Any, List, NamedTuple, Optional, Sequence

import tensorflow as tf

_DIGESTS = 4093  # of a batch; workers add theirs up as float32, which is exact up to 2**24
# Operations whose results may differ from worker to worker; Python's functions may be among them.
_VARYING = re.compile(
    rb"PyFunc|Random(Uniform|StandardNormal|Gamma|Poisson)|TruncatedNormal|Multinomial|"
    rb"Stateless(Random|Sample)"
)


class Share(NamedTuple):
    """A global batch as every worker reads it, with a digest of its first and last row, float32."""

    digest: Any
    batch: Any


class Sharing(NamedTuple):
    """How batches are split: this worker's first replica, its replicas, and all replicas."""

    first: int
    local: int
    replicas: int


def share(batch: Any, compared: Optional[Sequence[Any]] = None) -> Share:
    """Returns a batch with the digest of `compared`, by default of all its tensors."""
    ends = [
        tf.io.serialize_tensor(end)
        for value in (tf.nest.flatten(batch) if compared is None else compared)
        if isinstance(value, tf.Tensor) and _has_rows(value)
        for end in (value[:1], value[-1:])
    ]
    text = tf.strings.join(ends) if ends else tf.constant("")
    return Share(tf.cast(tf.strings.to_hash_bucket_fast(text, _DIGESTS), tf.float32), batch)


def share_dataset(dataset: tf.data.Dataset) -> Optional[tf.data.Dataset]:
    """Returns the dataset of shares, with the given one as its attribute `whole_batches`.

    None stands for a dataset from which each worker reads its own files or data, or batches of a
    tf.data service.
    """
    graph, policy = _graph(dataset), tf.data.experimental.AutoShardPolicy
    of_dataset = dataset.options().experimental_distribute.auto_shard_policy
    if of_dataset not in (policy.AUTO, policy.DATA) or b"DataServiceDataset" in graph:
        return None
    generated = b"GeneratorDataset" in graph
    while generated and type(dataset).__name__.lstrip("_") == "PrefetchDataset":
        (dataset,) = dataset._inputs()
    single = not isinstance(dataset.element_spec, tuple)
    # Random rows, such as augmented images, may differ between workers.
    may_vary = not graph or _VARYING.search(graph)

    def shared(*elements: Any) -> Share:
        batch = elements[0] if single else elements
        return share(batch, _labels(batch) if may_vary else None)

    shares = dataset.map(shared)
    # The next reader of a generator does not get the batches that were read ahead. Their number is
    # random, so the workers would be at different batches.
    if not generated:
        shares = shares.prefetch(tf.data.AUTOTUNE)
    shares.whole_batches = dataset
    return shares


def _labels(batch: Any) -> List[Any]:
    """Returns the integers by row that are not inputs of a batch: they are rarely augmented."""
    targets = tf.nest.flatten(batch[1:]) if isinstance(batch, tuple) else []
    return [
        value
        for value in targets
        if isinstance(value, tf.Tensor) and value.dtype.is_integer and value.shape.rank in (1, 2)
    ]


def _graph(dataset: tf.data.Dataset) -> bytes:
    try:
        ignore = tf.data.experimental.ExternalStatePolicy.IGNORE
        graph: bytes = dataset._as_serialized_graph(external_state_policy=ignore).numpy()
    except (AttributeError, tf.errors.OpError, ValueError):  # such as a graph of more than 2 GiB
        return b""
    return graph


def count_rows(batch: Any) -> Any:
    """Returns the number of a batch's rows: an int where it is known, else an int32 tensor."""
    for value in filter(_has_rows, tf.nest.flatten(batch)):
        static = value.shape[0] if value.shape.rank else None
        return tf.cast(tf.shape(value)[0], tf.int32) if static is None else int(static)
    return 1


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
    tensors = (tf.Tensor, tf.RaggedTensor, tf.SparseTensor)
    return isinstance(value, tensors) and value.shape.rank != 0
