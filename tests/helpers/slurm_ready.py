"""Resolves the cluster in each task of a test step, and meets the others, perhaps with a fault.

Each task writes the outcome to TASK_OUTPUT/<rank>. In the folder TASK_EVENTS, it creates the file
``pid RANK`` when it starts, and ``came RANK`` when it has arrived. With ``--late '{"0": 6}'``,
rank 0 arrives 6 s later. With null instead of 6, it waits for the file ``go``.
"""

from __future__ import annotations

import argparse
import json
import os
import threading
import time
from pathlib import Path

import slurm_resolver as sr
from slurm_resolver.coordination.client import connect
from slurm_resolver.start.ready import wait_until_ready


def start_together(folder: Path, rank: int, late: dict[str, float | None]) -> None:
    (folder / f"starts {rank}").write_text(str(os.getpid()))
    (folder / f"starts {rank}").rename(folder / f"pid {rank}")
    while len(list(folder.glob("pid *"))) < int(os.environ["SLURM_NTASKS"]):
        time.sleep(0.02)
    if str(rank) in late:
        seconds = late[str(rank)]
        started = time.monotonic()
        while seconds is None or time.monotonic() < started + seconds:
            if (folder / "go").exists():
                break
            time.sleep(0.02)


def tell_when_come(folder: Path, rank: int, cluster: sr.Cluster) -> None:
    assert cluster.service is not None
    client = connect(cluster.service)
    while client._connection is None or not client._standing:
        time.sleep(0.02)
    (folder / f"came {rank}").touch()


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument(
        "--timeout",
        type=float,
        default=30.0,
    )
    parser.add_argument(
        "--other-jobs-in",
        type=int,
        default=-1,
    )
    parser.add_argument("--node-address")
    parser.add_argument("--port-base", type=int)
    parser.add_argument(
        "--late",
        type=json.loads,
        default={},
    )
    args = parser.parse_args()
    rank = int(os.environ["SLURM_PROCID"])
    # Opened early, because a service with a low limit of open files may use all of them.
    new = f"{os.environ['TASK_OUTPUT']}.{rank}"
    file = os.open(new, os.O_WRONLY | os.O_CREAT)
    cluster = sr.resolve(
        {"ps": 1, "worker": -1} if rank == args.other_jobs_in else None,
        node_address=args.node_address,
        port_base=args.port_base,
    )
    if "TASK_EVENTS" in os.environ:
        events = Path(os.environ["TASK_EVENTS"])
        start_together(events, rank, args.late)
        threading.Thread(
            target=tell_when_come,
            args=(events, rank, cluster),
            daemon=True,
        ).start()

    told = None
    try:
        wait_until_ready(cluster, args.timeout)
    except sr.RendezvousError as error:
        told = str(error)
    os.write(file, json.dumps(told).encode())
    Path(new).rename(Path(os.environ["TASK_OUTPUT"], str(rank)))


if __name__ == "__main__":
    main()
