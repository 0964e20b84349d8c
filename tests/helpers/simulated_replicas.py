"""Runs what the partition writes for several replicas in one graph, without processes.

The real collectives are in tests of two processes, which are slow. Here, a thread for each replica
writes into one graph, one at a time: each stops where it needs a sum, all vectors are added, and
each goes on with the sums. So a step with three replicas takes as long as three steps of one
process, a plan can be looked at, and any number of rows can be tried, also fewer than replicas::

    replica 0    operations … vectors ──┐        ┌── operations …
    replica 1    operations … vectors ──┼─ sums ─┼── operations …
    replica 2    operations … vectors ──┘        └── operations …
"""

from __future__ import annotations

import threading
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import tensorflow as tf

from slurm_resolver.tf.partition.collectives import OwnRows
from slurm_resolver.tf.partition.emission import Emission, Plan


def own_rows(total: Any, replica: int, replicas: int) -> OwnRows:
    """Returns the rows of a replica: r, r + R, r + 2 R, …"""
    places = tf.range(
        tf.minimum(replica, total),
        total,
        replicas,
    )
    return OwnRows(
        tf.convert_to_tensor(total),
        places,
        tf.size(places),
        replica,
    )


def write_all(
    plan: Plan, rows: Sequence[OwnRows], inputs: Sequence[Sequence[Any]]
) -> list[list[Any]]:
    """Returns the outputs of each replica; their collectives are sums in this graph."""
    graph = tf.compat.v1.get_default_graph()
    sent: dict[int, Sequence[Any]] = {}
    sums: list[Any] = []

    def add() -> None:
        sums[:] = map(tf.add_n, zip(*(sent[own.replica] for own in rows)))

    turn = threading.Lock()
    all_sent = threading.Barrier(
        len(rows),
        action=add,
        timeout=60,
    )

    def write(own: OwnRows, given: Sequence[Any]) -> list[Any]:
        def add_up(vectors: Sequence[Any]) -> list[Any]:
            sent[own.replica] = vectors
            turn.release()
            all_sent.wait()
            turn.acquire()
            return [*sums]

        with turn, graph.as_default():
            return Emission(plan, own, given, add_up).all()

    with ThreadPoolExecutor(len(rows)) as threads:
        return list(threads.map(write, rows, inputs))


class SimulatedReplicas:
    """A step that several replicas take, each with variables of its own.

    Attributes:
        plan: of the step.
        variables: for each replica, its copies of the step's variables, in the order of the
            graph's.
    """

    def __init__(
        self,
        traced: Any,
        plan: Plan,
        replicas: int,
    ) -> None:
        self.plan = plan
        self._replicas = replicas
        self.originals = list(traced.graph.variables)
        self.variables = [[tf.Variable(one) for one in self.originals] for _ in range(replicas)]
        self._captured = []
        for own in self.variables:
            handles = {id(one.handle): copy.handle for one, copy in zip(self.originals, own)}
            self._captured.append([handles.get(id(one), one) for one in traced.captured_inputs])
        arguments = traced.graph.inputs[: len(traced.graph.inputs) - len(traced.captured_inputs)]
        specs = [tf.TensorSpec(one.shape, one.dtype) for one in arguments]
        signature = [tf.TensorSpec([], tf.int32), [specs] * replicas]
        self._run = tf.function(
            self._take,
            autograph=False,
            input_signature=signature,
        )

    def write(self) -> None:
        """Writes the graph of the replicas."""
        self._run.get_concrete_function()

    def __call__(self, batch: Sequence[Any]) -> list[list[Any]]:
        """Takes a step, and returns each replica's outputs."""
        parts = []
        for replica in range(self._replicas):
            parts.append([np.asarray(one)[replica :: self._replicas] for one in batch])
        found: list[list[Any]] = self._run(len(batch[0]), parts)
        return found

    def _take(self, total: Any, parts: Sequence[Sequence[Any]]) -> list[list[Any]]:
        rows = [
            own_rows(
                total,
                one,
                self._replicas,
            )
            for one in range(self._replicas)
        ]
        inputs = [[*part, *captured] for part, captured in zip(parts, self._captured)]
        return write_all(
            self.plan,
            rows,
            inputs,
        )
