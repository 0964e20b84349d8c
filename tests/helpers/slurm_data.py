"""What each task of a test step runs to read from a tf.data service.

Those who train leave in the folder TASK_OUTPUT which numbers they have read, once those below
``--numbers``; or without end, until the file STOP lies there, and the number of steps done.
"""

from __future__ import annotations

import argparse
import os
import sys
from pathlib import Path
from typing import Iterator, List

import tensorflow as tf

from slurm_resolver import MultiWorkerMirroredStrategy, SlurmClusterResolver

OUTPUT = Path(os.environ["TASK_OUTPUT"])
BATCH = 4


def tell(name: str, what: object) -> None:
    (OUTPUT / f"{name}.new").write_text(str(what))
    (OUTPUT / f"{name}.new").rename(OUTPUT / name)


def batches(resolver: SlurmClusterResolver, numbers: int) -> Iterator[List[int]]:
    strategy = MultiWorkerMirroredStrategy(resolver)  # before any dataset
    service = tf.data.experimental.service
    data = tf.data.Dataset.range(numbers or 10**9).batch(BATCH)
    mode = service.ShardingPolicy.DYNAMIC
    data = data.apply(service.distribute(mode, resolver.data_service, job_name="shared"))
    workers = resolver.cluster_spec().num_tasks("worker")
    assert strategy.num_replicas_in_sync == workers, strategy.num_replicas_in_sync
    for batch in strategy.experimental_distribute_dataset(data):
        parts = strategy.experimental_local_results(batch)
        yield [int(number) for part in parts for number in part.numpy()]


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("--data-workers", type=int, default=1)
    parser.add_argument("--numbers", type=int, default=0)
    parser.add_argument("--raise", action="store_true")
    args = parser.parse_args()
    jobs = {"worker": -1, "dispatcher": 1, "data_worker": args.data_workers}
    resolver = SlurmClusterResolver(jobs)
    resolver.wait_until_ready(90)
    own = resolver.cluster.task
    assert own is not None
    tell(f"{own.job}-{own.index}.pid", os.getpid())
    tell(f"{own.job}-{own.index}.rank", own.rank)
    assert resolver.cluster_spec().jobs == ["worker"]
    if own.job in ("dispatcher", "data_worker"):
        assert resolver.master() == f"grpc://{own.address}"
        return resolver.serve()
    read: List[int] = []
    for steps, batch in enumerate(batches(resolver, args.numbers), 1):
        if args.numbers:
            read += batch
        elif own.index == 0:
            tell("steps", steps)
        if (OUTPUT / "STOP").exists():
            if getattr(args, "raise"):
                raise ValueError("these steps are enough")
            break
    tell(f"read-{own.index}", " ".join(map(str, read)))
    return 0


if __name__ == "__main__":
    sys.exit(main())
