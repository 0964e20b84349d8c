"""What each task of a test step runs that has a monitor and trains nothing: it needs no TensorFlow.

In the folder TASK_OUTPUT each one leaves who it is when the monitor knows it, and its exit status
is that of the job. The chief finishes when the file STOP lies there. All ranks that are not in
FIRST come when the file COME does.
"""

from __future__ import annotations

import json
import os
import sys
import time
from pathlib import Path

import slurm_resolver as sr
from slurm_resolver.parameter_server.member import Member
from slurm_resolver.parameter_server.monitor import Monitor
from slurm_resolver.parameter_server.protocol import monitor_address

OUTPUT = Path(os.environ["TASK_OUTPUT"])


def await_file(name: str) -> None:
    while not (OUTPUT / name).exists():
        time.sleep(0.05)


def main() -> int:
    if os.environ["SLURM_PROCID"] not in os.environ["FIRST"].split(","):
        await_file("COME")
    cluster = sr.resolve({"chief": 1, "ps": 1, "worker": -1})
    address, own = monitor_address(cluster), cluster.task
    assert address is not None
    assert own is not None
    is_monitor = own.rank == address.monitor_rank
    task = Monitor(address) if is_monitor else Member(address)
    if own.job != "chief":
        task.serve()
    if isinstance(task, Member):
        assert task.await_joined(60)
    told = {"pid": os.getpid(), "port": address.port}
    (OUTPUT / f"{own.rank}.new").write_text(json.dumps(told))
    (OUTPUT / f"{own.rank}.new").rename(OUTPUT / str(own.rank))
    if own.job == "chief":
        await_file("STOP")
        return 0
    result = task.wait()
    if result.status:
        print(f"rank {own.rank}: {result.message}", file=sys.stderr)
    return result.status


if __name__ == "__main__":
    sys.exit(main())
