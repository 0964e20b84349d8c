"""What another number of workers makes of the same dataset: which of its samples come when.

`tf.distribute` deals a dataset to the workers: it splits every batch, or gives whole files to each.
Only in the first way is the n-th step the same batch on any number of workers; and only if nothing
behind `batch` changes the batches are the first samples of the epoch the same in any batch size.
What is known of a dataset is read from its chain of inputs, as TensorFlow's own analysis does.
"""

from __future__ import annotations

from typing import Any, Iterator, NamedTuple, Optional

import tensorflow as tf

INFINITE: int = tf.data.INFINITE_CARDINALITY
UNKNOWN: int = tf.data.UNKNOWN_CARDINALITY

_OWN = "each worker has data of its own, which TensorFlow does not deal anew"
_ITERATOR = "an iterator does not tell how its data is dealt and batched"
_DATA = "AutoShardPolicy.DATA deals it anew"
# What makes of each batch one batch.
_BATCH_BY_BATCH = ("OptionsDataset", "MapDataset", "ParallelMapDataset", "PrefetchDataset")
_READERS = (b"TFRecordDataset", b"TextLineDataset", b"FixedLengthRecordDataset")


class Batches(NamedTuple):
    """What is known of a dataset of batches.

    Attributes:
        dataset: the dataset before it is dealt to the workers; None where that is not known.
        size: how many samples a global batch has, but for a last one; None where not known.
        samples: how many there are before `batch`; INFINITE, or UNKNOWN.
        drop_remainder: whether a last batch of fewer samples is left out.
        dealt: whether it is `tf.distribute` that deals it.
        by_rows: whether each batch is split by rows, whatever the dataset's source.
        iterator: whether it is an iterator, of which nothing is known.
        in_order: whether the samples come in the same order in batches of another size.
    """

    dataset: Any = None
    size: Optional[int] = None
    samples: int = UNKNOWN
    drop_remainder: bool = False
    dealt: bool = False
    by_rows: bool = False
    iterator: bool = False
    in_order: bool = False

    def steps(self, samples: int) -> int:
        """Returns how many batches so many samples make."""
        assert self.size
        return samples // self.size if self.drop_remainder else -(-samples // self.size)

    def without(self, samples: int) -> Any:
        """Returns the dataset without its first samples, in batches of the same size."""
        rest = self.dataset.unbatch().skip(samples)
        return rest.batch(self.size, drop_remainder=self.drop_remainder)


def batches_of(data: Any) -> Batches:
    """Returns what is known of a dataset, or of one that a strategy has distributed."""
    if hasattr(data, "whole_batches"):  # those of this package's strategy
        return _batches(data.whole_batches, dealt=True)._replace(by_rows=True)
    if isinstance(data, tf.data.Dataset):
        return _batches(data, dealt=False)
    dataset = getattr(data, "_original_dataset", None)
    if isinstance(dataset, tf.data.Dataset):
        policy = tf.data.experimental.AutoShardPolicy
        own = _policy(dataset) in (policy.OFF, policy.HINT)
        return Batches() if own else _batches(dataset, dealt=True)
    return Batches(iterator=isinstance(data, Iterator))


def why_not_by_batch(batches: Batches) -> str:
    """Returns why a step may be another batch on another number of workers; "" if it is the same.

    It reads the dataset's graph, which takes a while.
    """
    if not batches.dealt:
        return _ITERATOR if batches.iterator else _OWN
    if batches.by_rows:
        return ""
    policy = tf.data.experimental.AutoShardPolicy
    found = _policy(batches.dataset)
    if found == policy.FILE:
        return f"TensorFlow deals whole files to the workers (AutoShardPolicy.FILE); {_DATA}"
    if found == policy.DATA:
        return ""
    try:
        ignore = tf.data.experimental.ExternalStatePolicy.IGNORE
        serialized = batches.dataset._as_serialized_graph(external_state_policy=ignore)
        graph = serialized.numpy()
    except Exception as error:  # such as a graph of more than 2 GiB
        return f"how TensorFlow deals it is not known ({type(error).__name__}); {_DATA}"
    if any(reader in graph for reader in _READERS):
        return f"TensorFlow may deal whole files to the workers (AutoShardPolicy.AUTO); {_DATA}"
    if b"GeneratorDataset" in graph:
        return f"each worker reads all of a generator (AutoShardPolicy.AUTO); {_DATA}"
    return ""


def _policy(dataset: tf.data.Dataset) -> Any:
    return dataset.options().experimental_distribute.auto_shard_policy


def _batches(dataset: tf.data.Dataset, dealt: bool) -> Batches:
    known = Batches(dataset, dealt=dealt)
    inner: Any = dataset
    while type(inner).__name__.lstrip("_") in _BATCH_BY_BATCH:
        (inner,) = inner._inputs()
    if type(inner).__name__.lstrip("_") not in ("BatchDataset", "ParallelBatchDataset"):
        return known
    try:
        size, drop = int(inner._batch_size), bool(inner._drop_remainder)
        (samples,) = inner._inputs()
    except (AttributeError, TypeError, ValueError):  # another TensorFlow
        return known
    count = int(samples.cardinality())
    return known._replace(size=size, samples=count, drop_remainder=drop, in_order=True)
