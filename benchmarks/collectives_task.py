"""A task of benchmarks/collectives.py: all-reduces of `MultiWorkerMirroredStrategy`."""

from __future__ import annotations

from typing import Any, Callable

from teams import obey

import slurm_resolver as sr
from slurm_resolver.cluster.options import WorkerOrder


def prepare(port_base: int, size: int, worker_order: WorkerOrder) -> Callable[[int], object]:
    """Connects the workers; returns what reduces a tensor of `size` bytes so many times."""
    import tensorflow as tf

    resolver = sr.SlurmClusterResolver(port_base=port_base, worker_order=worker_order)
    options = tf.distribute.experimental.CommunicationOptions(
        implementation=tf.distribute.experimental.CommunicationImplementation.RING
    )
    strategy = tf.distribute.MultiWorkerMirroredStrategy(resolver, options)

    @tf.function  # type: ignore[untyped-decorator]
    def reduce() -> Any:
        def replica() -> Any:
            ones = tf.ones([size // 4])
            return tf.distribute.get_replica_context().all_reduce("SUM", ones)[0]

        return strategy.run(replica)

    def work(times: int) -> None:
        for _ in range(times):
            reduced = float(reduce())
            assert reduced == len(resolver.cluster.tasks), reduced

    work(1)  # makes the connections
    return work


if __name__ == "__main__":
    obey(prepare)
