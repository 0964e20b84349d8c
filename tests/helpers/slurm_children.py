"""What each task of a test step runs whose worker opens a pool of processes.

The resolver is made at module level, as in many programs: a child that is spawned imports this
module, and makes one too. What came of it goes to the folder TASK_OUTPUT.
"""

from __future__ import annotations

import json
import multiprocessing
import os
import sys
import time
from pathlib import Path
from typing import Any, Dict

import slurm_resolver as sr
from slurm_resolver.tf import server

resolver = sr.SlurmClusterResolver({"ps": 1, "worker": -1})


def describe(_: int = 0) -> Dict[str, Any]:
    """Returns what the resolver says here, and whether this process represents its task."""
    (member,) = server._members.values()
    member.await_joined(30)
    cluster = resolver.cluster_spec().as_dict()
    task, admitted = resolver.get_task_info(), not member.client.refusal
    return {"task": task, "cluster": cluster, "admitted": admitted, "pid": os.getpid()}


def main() -> int:
    resolver.wait_until_ready(60)
    told, status = describe(), 0
    if resolver.task_type == "ps":
        status = resolver.serve()
    else:
        with multiprocessing.get_context("spawn").Pool(1) as pool:
            told["child"] = pool.map(describe, [0])[0]
    path = Path(os.environ["TASK_OUTPUT"], os.environ["SLURM_PROCID"])
    path.write_text(json.dumps({**told, "status": status, "ends": time.time()}))
    return status


if __name__ == "__main__":
    sys.exit(main())
