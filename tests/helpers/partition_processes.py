"""Takes partitioned steps in several tasks, and prints how they differ from one process.

Each task also takes the steps of one process, on variables of its own.
"""

from __future__ import annotations

import operator
import sys
from typing import Any

import numpy as np
import tensorflow as tf
from simulated_replicas import own_rows
from step_programs import CASES, batches, planned

import slurm_resolver as sr
from slurm_resolver.tf.partition.step import write_step


def largest_difference(first: Any, second: Any) -> float:
    """Returns the largest difference between tensors and others at their places."""
    found = 0.0
    for one, other in zip(first, second):
        distances = np.abs(np.asarray(one) * 1.0 - np.asarray(other))
        found = max(found, float(np.max(distances, initial=0)))
    return found


def difference(strategy: Any, name: str) -> float:
    """Returns how a program differs in its weights and logs."""
    step, traced, plan, data = planned(CASES[name].program)
    replica = strategy.cluster_resolver.task_id
    replicas = strategy.num_replicas_in_sync
    originals = traced.graph.variables
    copies = [tf.Variable(one) for one in originals]
    handles = {id(one.handle): copy.handle for one, copy in zip(originals, copies)}
    given = [handles.get(id(one), one) for one in traced.captured_inputs]

    def add_up(vectors: list[Any]) -> list[Any]:
        context = tf.distribute.get_replica_context()
        sums: list[Any] = context.all_reduce(tf.distribute.ReduceOp.SUM, vectors)
        return sums

    def in_replica(rows: Any, batch: Any) -> list[Any]:
        own = own_rows(
            rows,
            replica,
            replicas,
        )
        return write_step(
            plan,
            own,
            [*tf.nest.flatten(batch), *given],
            add_up,
        )

    def run(rows: Any, batch: Any) -> Any:
        return strategy.run(in_replica, args=(rows, batch))

    compiled = tf.function(
        run,
        autograph=False,
        reduce_retracing=True,
    )
    found = 0.0
    for batch in batches(data):
        rows = len(tf.nest.flatten(batch)[0])
        part = slice(replica, None, replicas)
        own = tf.nest.map_structure(operator.itemgetter(part), batch)
        logs = step(tf.nest.map_structure(tf.constant, batch))
        outputs = compiled(
            tf.constant(rows),
            tf.nest.map_structure(tf.constant, own),
        )
        found = max(found, largest_difference(outputs, tf.nest.flatten(logs)))
    return max(found, largest_difference(copies, originals))


if __name__ == "__main__":
    workers = sr.MultiWorkerMirroredStrategy()
    for program in sys.argv[1:]:
        print(f"differs by {difference(workers, program)} {program}", flush=True)
