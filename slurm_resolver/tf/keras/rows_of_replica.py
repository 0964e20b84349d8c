"""A replica's part of a batch, and the step that it takes on this part.

The workers either read equal global batches, as a `Share`, of which each replica takes its rows; or
each worker reads its own data, which together are the global batch.
"""

from __future__ import annotations

from typing import Any

import tensorflow as tf

from slurm_resolver.tf.keras.sharing import (
    Share,
    count_rows,
    have_other_rows,
    names_of_tensors,
    part_of_batch,
)
from slurm_resolver.tf.keras.step import Step, add_up, gather_rows, replica_number
from slurm_resolver.tf.keras.step_comparison import Comparison


def part_of_share(
    model: Any, share: Share, comparison: Comparison, *, whole: bool
) -> tuple[Any, Step]:
    """Returns a replica's part of a batch that all workers read, and its step.

    Replica r of R has the rows r, r + R, r + 2 R, and so on.

    Args:
        comparison: of the workers' steps.
        whole: whether each replica computes all rows.
    """
    sharing = model.distribute_strategy.sharing
    replicas = sharing.replicas
    replica = replica_number()
    batch = share.batch
    rows = count_rows(batch if share.rows is None else share.rows)
    own = (rows + replicas - 1 - replica) // replicas
    places = tf.range(own) * replicas + replica
    # For no rows, many layers and losses return NaN. It is a tensor if a number of rows is unknown.
    repeated = rows < replicas
    if share.rows is None:
        first = replica
        stride = replicas
        others = have_other_rows(batch)
        # TensorFlow's `or` would make a tensor of what is known.
        repeated = repeated or others if isinstance(repeated, bool) else repeated | others
    else:  # the worker has no rows but those of its replicas
        first = replica - sharing.first_replica
        stride = sharing.local_replicas
    count = tf.cast(own, tf.int32)
    if not whole:
        # The number of rows must not be a constant: the analysis would not know it from others.
        count = tf.compat.v1.placeholder_with_default(count, [])
    with tf.device("/cpu:0"):  # other rows need not be copied to a GPU
        if not whole or share.rows is not None:
            batch = part_of_batch(batch, count=count, first=first, stride=stride, repeated=repeated)
        if whole and share.rows is not None:
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
        comparison=comparison,
        digest=share.digest,
        names=names_of_tensors(share),
        whole=whole,
    )


def step_on_own_data(model: Any, part: Any, comparison: Comparison) -> Step:
    """Returns a replica's step on data that its worker has read for itself."""
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
        comparison=comparison,
    )
