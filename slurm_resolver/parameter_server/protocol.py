"""The messages between the tasks of a parameter server job and its monitor.

The monitor runs in ps 0, or without a ps in the dispatcher of a tf.data service: it has to be there
as long as any task that it serves. Every other task holds a connection to it, by itself or through
another task of its node (see `channels`), and sends:

    {"rank": 3, "process": "5f…", "turn": 1, "identity": […], "serves": false}   the first message
    {"serves": true}                   from now on this task only serves; false: or it does not
    {"ends": "exit status 2"}          its process ends; "" without an error

It gets ``{"welcome": true, "process": "a8…", "grace": 30}`` or ``{"refused": "why"}``; through
another task also ``{"noted": true}`` where it ends; and when the job has ended ``{"status": 0,
"message": "…"}``.

However a process ends, the kernel closes its connection, and so it is known at once. A gap of the
network is no end: for the grace TCP sends again what was not acknowledged, and its keepalive probes
tell a node that is gone; neither needs work of the processes. The tasks' ends have half the grace:
where the network has forgotten a connection, or has reset it, the task connects again in the rest.
A process is known again by the number that it has drawn. It counts the turns in which it has tried:
what it said in an earlier one may arrive later.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import sys
from typing import NamedTuple, Optional, Sequence

from slurm_resolver.cluster.cluster import Cluster
from slurm_resolver.cluster.data_service import DATA_WORKER, DISPATCHER
from slurm_resolver.cluster.tasks import Task

START_SECONDS = 300.0  # for the tasks to join
# By the job of tasks that only serve, until the end: what is lost with such a task. Without a data
# worker TensorFlow goes on without its data, and without a word, or waits for it for ten minutes.
_LOST_WITH = {"ps": "its variables", DISPATCHER: "the data service", DATA_WORKER: "data"}
SERVING_JOBS = tuple(_LOST_WITH)
JOBS = ("chief", "worker", *SERVING_JOBS)  # whose tasks take part
NETWORK_GRACE = 30  # seconds without an answer after which a node is given up


class JobResult(NamedTuple):
    """How the job has ended: the exit status of the tasks that serve, and a message."""

    status: int
    message: str


class MonitorAddress(NamedTuple):
    """The address of a job's monitor, with what this task needs to join.

    Attributes:
        host, port: where the monitor listens.
        identity: texts that identify the step and the cluster.
        tasks: all tasks of the step, ``tasks[rank]``.
        rank: the rank of this task.
        monitor_rank: the rank of ps 0, or of the dispatcher.
        grace: the seconds that the network may fail; where the tasks' differ, the monitor's counts.
    """

    host: str
    port: int
    identity: Sequence[str]
    tasks: Sequence[Task]
    rank: int
    monitor_rank: int
    grace: float = NETWORK_GRACE

    @property
    def meeting(self) -> str:
        """What a task joins: it tells the monitor from other meetings of the step."""
        return f"{self.identity[0]}:monitor"

    def name(self, rank: int) -> str:
        """Returns the text that names a task in messages."""
        task = self.tasks[rank]
        return f"{task.job} {task.index} (rank {rank} on {task.node})"

    def server_lost(self, rank: int, failure: str) -> JobResult:
        """Returns the result of a job that has lost a task of `SERVING_JOBS`."""
        what = _LOST_WITH[self.tasks[rank].job]
        why = failure or "it has ended before the tasks that it serves"
        return JobResult(1, f"{self.name(rank)} is lost, and {what} with it: {why}")


def monitor_address(cluster: Cluster) -> Optional[MonitorAddress]:
    """Returns the address of this task's monitor.

    None without parameter servers or a dispatcher, without a chief or worker, and in the evaluator
    and in jobs of other names: no task waits for these.
    """
    task, rendezvous = cluster.task, cluster.rendezvous
    if task is None or task.job not in JOBS or rendezvous is None:
        return None
    firsts = {t.job: t for t in cluster.tasks if t.index == 0}
    host = firsts.get("ps", firsts.get(DISPATCHER))
    if host is None or not {"chief", "worker"} & set(firsts):
        return None
    jobs = json.dumps([(t.job, t.index, t.address) for t in cluster.tasks])
    return MonitorAddress(
        host=host.address.rpartition(":")[0],
        port=rendezvous.port,
        identity=(rendezvous.identity, hashlib.sha256(jobs.encode()).hexdigest()[:16]),
        tasks=cluster.tasks,
        rank=task.rank,
        monitor_rank=host.rank,
        grace=cluster.step.network_grace or NETWORK_GRACE,
    )


def print_line(text: str) -> None:
    """Writes a line to standard error by one call, and flushes it."""
    with contextlib.suppress(OSError, ValueError, AttributeError):  # closed, or None
        sys.stderr.write(f"slurm_resolver: {text}\n")
        sys.stderr.flush()
