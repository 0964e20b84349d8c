"""What each task of a test step runs to see whether faults are told before TensorFlow starts.

It resolves the cluster and waits for the others, with a fault in one rank where one is asked for.
What came of it goes to a file of its own in the folder TASK_OUTPUT.
"""

from __future__ import annotations

import argparse
import json
import os
import socket
import sys
import threading
import time
from pathlib import Path
from typing import Any, Dict

import slurm_resolver as sr
from slurm_resolver.preflight import agreement
from slurm_resolver.preflight.ready import wait_until_ready


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--timeout", type=float, default=30.0)
    parser.add_argument("--fault", default="")
    parser.add_argument("--in-rank", type=int, default=-1)
    parser.add_argument("--node-address")
    args = parser.parse_args()
    rank = int(os.environ["SLURM_PROCID"])
    fault = args.fault if rank == args.in_rank else ""

    if fault == "never starts":
        time.sleep(args.timeout + 3)
        return
    if fault == "exits early":
        sys.exit(0)
    if fault == "another version":
        vars(agreement)["__version__"] = "9.9.9"
    jobs = {"ps": 1, "worker": -1} if fault == "other jobs" else None
    keywords: Dict[str, Any] = {"placement": "rank"} if fault == "another placement" else {}
    cluster = sr.resolve(jobs, node_address=args.node_address, **keywords)
    if fault == "a wrong layout":
        tasks = list(cluster.tasks)
        tasks[0], tasks[-1] = (
            tasks[0]._replace(node=tasks[-1].node),
            tasks[-1]._replace(node=tasks[0].node),
        )
        cluster = cluster._replace(tasks=tuple(tasks))
    if fault == "a taken port":
        assert cluster.task is not None
        holder = socket.create_server(("", int(cluster.task.address.rpartition(":")[2])))
        assert holder.fileno() > 0
    if fault == "ends while it waits":
        threading.Timer(1.0, os._exit, [0]).start()

    outcome: Dict[str, Any] = {"rank": rank, "error": None}
    started = time.monotonic()
    try:
        wait_until_ready(cluster, args.timeout)
    except sr.RendezvousError as error:
        outcome["error"] = str(error)
    outcome["seconds"] = time.monotonic() - started
    Path(os.environ["TASK_OUTPUT"], str(rank)).write_text(json.dumps(outcome))


if __name__ == "__main__":
    main()
