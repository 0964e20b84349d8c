"""A replica's part of a batch, and the step that it takes on this part.

The workers either read equal global batches, as a `Share`, of which each replica takes its rows; or
each worker reads its own data, which together are the global batch.
"""

from __future__ import annotations

from typing import Any

import tensorflow as tf

from slurm_resolver.tf.keras.replica_step import Step, add_up, gather_rows, replica_number
from slurm_resolver.tf.keras.sharing import (
    Share,
    count_rows,
    have_other_rows,
    names_of_tensors,
    part_of_batch,
)
from slurm_resolver.tf.keras.split_or_whole import ComputeWholeError
from slurm_resolver.tf.keras.step_comparison import Comparison


def part_of_share(
    model: Any, share: Share, comparison: Comparison, *, whole: bool
) -> tuple[Any, Step]:
    """Returns a replica's part of a batch that all workers read, and its step.

    Replica r of R has the rows r, r + R, r + 2 R, and so on.

    Args:
        comparison: of the workers' steps.
        whole: whether each replica computes all rows.

    Raises:
        ComputeWholeError: if the batch cannot be split.
    """
    sharing = model.distribute_strategy.sharing
    replica = replica_number()
    batch = share.batch
    is_divided = share.rows is not None  # the worker has no rows but those of its replicas
    rows = count_rows(share.rows if is_divided else batch)
    own = (rows + sharing.replicas - 1 - replica) // sharing.replicas
    places = tf.range(own) * sharing.replicas + replica
    # For no rows, many layers and losses return NaN. It is a tensor if a number of rows is unknown.
    repeated = rows < sharing.replicas
    first = replica
    stride = sharing.replicas
    if is_divided:
        first -= sharing.first_replica
        stride = sharing.local_replicas
    elif not whole:
        others = have_other_rows(batch)
        if others is True:
            raise ComputeWholeError("the first dimensions of its tensors differ")
        repeated |= others
    with tf.device("/cpu:0"):  # other rows need not be copied to a GPU
        if is_divided or not whole:
            first = tf.where(repeated, 0, first)
            stride = tf.where(repeated, 1, stride)
            # The number of rows must not be a constant: the analysis could not tell it from others.
            stride = tf.compat.v1.placeholder_with_default(stride, [])
            batch = part_of_batch(batch, first, stride)
        if is_divided and whole:
            batch = tf.nest.map_structure(
                lambda one: gather_rows(one, places, rows, repeated), batch
            )
    repeated = whole or repeated
    return batch, Step(
        model,
        replica,
        rows=tf.cast(rows, tf.int32),
        own_rows=tf.where(repeated, rows, own),
        places=places,
        repeated=repeated,
        counts=replica == 0 or repeated is False or tf.logical_not(repeated),
        comparison=comparison,
        compared=comparison.row(replica, share.digest, names_of_tensors(share)),
        whole=whole,
    )


def step_on_own_data(model: Any, part: Any, comparison: Comparison) -> Step:
    """Returns a replica's step on data that its worker has read for itself.

    A replica has no rows if the data of its worker has ended.
    """
    replica = replica_number()
    own = tf.cast(count_rows(part), tf.int32)
    replicas = model.distribute_strategy.sharing.replicas
    (counts,) = add_up([tf.one_hot(replica, replicas, on_value=own, off_value=0)])
    return Step(
        model,
        replica,
        rows=tf.reduce_sum(counts),
        own_rows=own,
        places=tf.range(own) + tf.reduce_sum(counts[:replica]),
        repeated=False,
        counts=own > 0,
        comparison=comparison,
        compared=comparison.row(replica, None, ()),
        whole=replicas == 1,
    )
