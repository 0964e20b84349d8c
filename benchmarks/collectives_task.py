"""A task of benchmarks/collectives.py: all-reduces with `MultiWorkerMirroredStrategy`."""

from __future__ import annotations

from typing import Any, Callable

from variants import serve_variants

import slurm_resolver as sr
from slurm_resolver.cluster.options import WorkerOrder


def prepare(port_base: int, size: int, worker_order: WorkerOrder) -> Callable[[int], object]:
    """Connects the workers; returns a function that reduces a tensor of `size` bytes repeatedly."""
    import tensorflow as tf

    resolver = sr.SlurmClusterResolver(port_base=port_base, worker_order=worker_order)
    options = tf.distribute.experimental.CommunicationOptions(
        implementation=tf.distribute.experimental.CommunicationImplementation.RING
    )
    strategy = tf.distribute.MultiWorkerMirroredStrategy(resolver, options)

    @tf.function  # type: ignore[untyped-decorator]
    def all_reduce() -> Any:
        def replica() -> Any:
            ones = tf.ones([size // 4])
            return tf.distribute.get_replica_context().all_reduce("SUM", ones)[0]

        return strategy.run(replica)

    def run_steps(times: int) -> None:
        for _ in range(times):
            total = float(all_reduce())
            assert total == len(resolver.cluster.tasks), total

    run_steps(1)  # opens the connections
    return run_steps


if __name__ == "__main__":
    serve_variants(prepare)
