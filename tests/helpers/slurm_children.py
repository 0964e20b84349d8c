"""What each task of a test step runs whose workers open a pool of processes.

The resolver is made at module level, as in many programs: a child that is spawned imports this
module, and makes one too. The worker has such a child, and the parameter server does not serve
before that one is there. What came of it goes to the folder TASK_OUTPUT.
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

OUTPUT = Path(os.environ["TASK_OUTPUT"])
JOIN_SECONDS = 30

resolver = sr.SlurmClusterResolver({"ps": 1, "worker": -1})


def tell(name: str, what: object = "") -> None:
    (OUTPUT / f"{name}.new").write_text(json.dumps(what))
    (OUTPUT / f"{name}.new").rename(OUTPUT / name)


def await_file(name: str) -> None:
    deadline = time.monotonic() + 90
    while not (OUTPUT / name).exists():
        if time.monotonic() > deadline:
            raise TimeoutError(f"no file {name}")
        time.sleep(0.02)


def join() -> bool:
    """Returns whether the coordination service admits this process as its task."""
    (member,) = server._members.values()
    member.await_joined(JOIN_SECONDS)
    return not member.client.refusal


def in_child(_: int) -> Dict[str, Any]:
    tell("child")
    await_file("serving")
    return {
        "task": resolver.get_task_info(),
        "cluster": resolver.cluster_spec().as_dict(),
        "parent": os.getppid(),
        "joins": join(),
    }


def main() -> int:
    resolver.wait_until_ready(60)
    told: Dict[str, Any] = {"cluster": resolver.cluster_spec().as_dict(), "pid": os.getpid()}
    if resolver.task_type == "ps":
        await_file("child")
        tell("serving")
        told["status"] = resolver.serve()
    else:
        with multiprocessing.get_context("spawn").Pool(1) as pool:
            told["child"] = pool.map(in_child, [0])[0]
        told["joins"] = join()
    told["ends"] = time.time()
    tell(os.environ["SLURM_PROCID"], told)
    return int(told.get("status", 0))


if __name__ == "__main__":
    sys.exit(main())
