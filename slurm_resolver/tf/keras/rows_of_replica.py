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
    Sharing,
    count_rows,
    have_other_rows,
    names_of_tensors,
    part_of_batch,
)
from slurm_resolver.tf.keras.split_or_whole import ComputeWholeError
from slurm_resolver.tf.keras.step_comparison import Comparison
from slurm_resolver.tf.partition.collectives import OwnRows


def is_not_split(batch: Any, sharing: Sharing) -> Any:
    """Returns whether each replica computes all rows of a batch: a bool, or a tensor.

    It does if there are fewer rows than replicas, or if the tensors do not have the same rows.
    """
    if sharing.replicas == 1:
        return True
    if not isinstance(batch, Share):
        return False
    if batch.rows is not None:
        return count_rows(batch.rows) < sharing.replicas
    others = have_other_rows(batch.batch)
    few = count_rows(batch.batch) < sharing.replicas
    if isinstance(others, bool) and isinstance(few, bool):
        return others or few
    return tf.logical_or(others, few)


def part_of_replica(batch: Any, replica: int, sharing: Sharing) -> tuple[Any, OwnRows]:
    """Returns a replica's part of a batch, and which rows these are.

    Replica r of R has the rows r, r + R, r + 2 R, and so on of a `Share`. Of other batches, it has
    what its worker has read for itself.
    """
    if not isinstance(batch, Share):
        own = tf.convert_to_tensor(count_rows(batch), tf.int32)
        (counts,) = add_up([tf.one_hot(replica, sharing.replicas, on_value=own, off_value=0)])
        places = tf.range(own) + tf.reduce_sum(counts[:replica])
        return batch, OwnRows(tf.reduce_sum(counts), places, own, replica)
    first = replica
    stride = sharing.replicas
    if batch.rows is not None:  # the worker has no rows but those of its replicas
        first -= sharing.first_replica
        stride = sharing.local_replicas
    with tf.device("/cpu:0"):  # other rows need not be copied to a GPU
        part = part_of_batch(batch.batch, first, stride)
    return part, _own_rows(batch, replica, sharing)


def _own_rows(share: Share, replica: int, sharing: Sharing) -> OwnRows:
    total = tf.convert_to_tensor(count_rows(share.batch if share.rows is None else share.rows))
    own = (total + sharing.replicas - 1 - replica) // sharing.replicas
    return OwnRows(total, tf.range(own) * sharing.replicas + replica, own, replica)


def all_of_batch(batch: Any, replica: int, sharing: Sharing) -> tuple[Any, OwnRows]:
    """Returns all rows of a batch.

    Those that a worker has are gathered, unless there are too few for all replicas: then it has
    all of them.
    """
    if not isinstance(batch, Share) or batch.rows is not None:
        part, own = part_of_replica(batch, replica, sharing)
        few = isinstance(batch, Share) and own.total < sharing.replicas
        given = batch.batch if isinstance(batch, Share) else batch
        whole = tf.nest.map_structure(
            lambda one, all_rows: tf.cond(
                few,
                lambda: all_rows,
                lambda: gather_rows(one, own.places, own.total, repeated=False),
            ),
            part,
            given,
        )
        return whole, OwnRows(own.total, tf.range(own.total), own.total, replica)
    total = tf.convert_to_tensor(count_rows(batch.batch))
    return batch.batch, OwnRows(total, tf.range(total), total, replica)


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
