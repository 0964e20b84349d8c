"""What the tasks of a parameter server job tell its monitor, and what it tells them.

Every task holds a connection to ps 0, which never leaves before those that it serves: there the
monitor runs. A task sends:

    {"rank": 3, "identity": […], "serves": false}   first of all
    {"serves": true}                                 from now on it only serves
    {"ends": "exit status 2"}                        its process ends; "" for well

and gets ``{"welcome": true}`` or ``{"refused": "why"}``, and one thing more: ``{"status": 0,
"message": "…"}``, when the job has ended. However a process ends, the kernel closes its connection;
where a whole node vanishes, TCP's own probes find out, which cost neither side a thing while all is
well.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import sys
from typing import NamedTuple, Optional, Sequence

from slurm_resolver.cluster.cluster import Cluster
from slurm_resolver.cluster.tasks import Task

START_SECONDS = 300.0


class JobResult(NamedTuple):
    """How the job has ended: the exit status of those that serve, and what there is to say."""

    status: int
    message: str


class MonitorAddress(NamedTuple):
    """Where a job's monitor is, as this task sees it.

    Attributes:
        host, port: where it listens.
        identity: the job's step, and a digest of the cluster.
        tasks: all tasks of the step by rank.
        rank: this task's.
        monitor_rank: the rank of ps 0.
    """

    host: str
    port: int
    identity: Sequence[str]
    tasks: Sequence[Task]
    rank: int
    monitor_rank: int

    def name(self, rank: int) -> str:
        """Returns how messages name a task."""
        task = self.tasks[rank]
        return f"{task.job} {task.index} (rank {rank} on {task.node})"


def monitor_address(cluster: Cluster) -> Optional[MonitorAddress]:
    """Returns where this task's monitor is.

    None without parameter servers or without anybody who trains, and for the evaluator, which
    nobody waits for.
    """
    own, rendezvous = cluster.task, cluster.rendezvous
    first = next((task for task in cluster.tasks if (task.job, task.index) == ("ps", 0)), None)
    trained = any(task.job in ("chief", "worker") for task in cluster.tasks)
    if first is None or not trained or own is None or own.job == "evaluator" or rendezvous is None:
        return None
    jobs = json.dumps([(task.job, task.index, task.address) for task in cluster.tasks])
    return MonitorAddress(
        host=first.address.rpartition(":")[0],
        port=rendezvous.port,
        identity=(rendezvous.identity, hashlib.sha256(jobs.encode()).hexdigest()[:16]),
        tasks=cluster.tasks,
        rank=own.rank,
        monitor_rank=first.rank,
    )


def print_line(text: str) -> None:
    """Writes a line to the standard error, at once and in one piece."""
    with contextlib.suppress(OSError, ValueError, AttributeError):  # closed, or None
        sys.stderr.write(f"slurm_resolver: {text}\n")
        sys.stderr.flush()
