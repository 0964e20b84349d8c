"""How many samples a global batch of a dataset has.

TensorFlow does not say. It is read from the dataset's chain of inputs, as TensorFlow's own
sharding does.
"""

from __future__ import annotations

from typing import Any

import tensorflow as tf

# These datasets make of each batch one batch.
_BATCH_BY_BATCH = ("OptionsDataset", "MapDataset", "ParallelMapDataset", "PrefetchDataset")
_BATCHING = ("BatchDataset", "ParallelBatchDataset")


def batch_size_of(data: Any) -> int:
    """Returns how many samples a global batch has; 0 if that is not known.

    Args:
        data: a dataset, or one that a strategy has distributed.
    """
    inner = getattr(data, "whole_batches", getattr(data, "_original_dataset", data))
    if not isinstance(inner, tf.data.Dataset):
        return 0
    while type(inner).__name__.lstrip("_") in _BATCH_BY_BATCH:
        (inner,) = inner._inputs()
    if type(inner).__name__.lstrip("_") not in _BATCHING:
        return 0
    try:
        return int(inner._batch_size)
    except (AttributeError, TypeError, ValueError):  # another TensorFlow
        return 0
