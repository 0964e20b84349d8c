"""Before TensorFlow starts: are all tasks there, do they agree, is every port free?

What TensorFlow would answer with silence, the tasks find out in a second by telling each other.
"""

from __future__ import annotations

import contextlib
import faulthandler
import hashlib
import importlib.metadata
import json
import os
import signal
import socket
import subprocess
import sys
from typing import Any, Dict, Iterator, List, Optional, Sequence

import slurm_resolver
from slurm_resolver.cluster.cluster import Cluster
from slurm_resolver.cluster.layout_exchange import HostOf, meeting_point
from slurm_resolver.errors import RendezvousError
from slurm_resolver.rendezvous.barrier import Note, meet
from slurm_resolver.rendezvous.probe import Listener
from slurm_resolver.slurm.step import SlurmStep

# What to compare, from the cause to its effects, and how a message names it.
COMPARED = (
    ("version", "the version of slurm_resolver"),
    ("tensorflow", "the version of TensorFlow"),
    ("jobs", "the jobs (argument jobs)"),
    ("layout", "where the ranks run"),
    ("roles", "which rank plays which job (placement, het_groups)"),
    ("addresses", "the addresses (port_base, node_address)"),
)


def wait_until_ready(
    cluster: Cluster,
    step: SlurmStep,
    timeout: float,
    port_base: Optional[int] = None,
    host_of: HostOf = str,
) -> None:
    """Returns when all tasks of the step have called this, agree, and can have their ports.

    Raises:
        RendezvousError: in every task, within `timeout` seconds and a few more: naming the tasks
            that are missing, the first thing that two tasks disagree on with both values, or the
            port that is taken.
    """
    if len(cluster.tasks) < 2:
        return
    names = task_names(cluster)
    point = meeting_point(step, "ready", names, port_base, host_of)
    note = {**describe(cluster), "port_taken": _port_taken(cluster)}
    meet(point, note, lambda notes: _compare(notes, names), timeout)


def task_names(cluster: Cluster) -> List[str]:
    """Returns by rank how messages name a task."""
    return [f"rank {task.rank} ({task.job} {task.index} on {task.node})" for task in cluster.tasks]


def describe(cluster: Cluster) -> Note:
    """Returns what a task tells the others of itself and of the cluster that it resolved."""
    counts: Dict[str, int] = {}
    for task in cluster.tasks:
        counts[task.job] = counts.get(task.job, 0) + 1
    return {
        "version": slurm_resolver.__version__,
        "tensorflow": tensorflow_version(),
        "jobs": counts,
        "layout": _digest([(task.node, task.local_rank) for task in cluster.tasks]),
        "roles": _digest([(task.job, task.index) for task in cluster.tasks]),
        "addresses": _digest([task.address for task in cluster.tasks]),
        "host": socket.gethostname(),
        "gpus": cluster.gpus,
    }


def tensorflow_version() -> Optional[str]:
    """Returns the version of the TensorFlow that this process has, without importing it."""
    loaded = sys.modules.get("tensorflow")
    if loaded is not None:
        return str(getattr(loaded, "__version__", "unknown"))
    for name in ("tensorflow", "tensorflow-cpu", "tensorflow-rocm", "tensorflow-intel"):
        with contextlib.suppress(importlib.metadata.PackageNotFoundError):
            return importlib.metadata.version(name)
    return None


def _digest(value: Any) -> str:
    return hashlib.sha256(json.dumps(value).encode()).hexdigest()[:16]


def _port_taken(cluster: Cluster) -> Optional[str]:
    """Why this task could not listen at its address; None where it can."""
    assert cluster.task is not None
    listener = Listener(cluster.task.rank, int(cluster.task.address.rpartition(":")[2]))
    listener.close()
    return listener.problem


def _compare(notes: Dict[int, Note], names: Sequence[str]) -> Dict[str, Any]:
    problems = [
        f"{names[rank]} cannot listen at {note['port_taken']}"
        for rank, note in sorted(notes.items())
        if note["port_taken"] is not None
    ]
    for key, what in COMPARED:
        told = sides(notes, key, names)
        if told:
            problems.append(f"the tasks disagree on {what}: {told}")
            break  # what follows from it would only repeat it
    if problems:
        raise RendezvousError(
            f"not ready: {'. '.join(problems)}. All tasks must run the same script with the same "
            "arguments and packages, on ports that nobody else has."
        )
    return {"ready": True}


def sides(notes: Dict[int, Note], key: str, names: Sequence[str]) -> str:
    """Returns who says what, where the notes differ in this key; '' where they do not.

    The fewest come first: they are the likely culprits.
    """
    values: Dict[str, List[int]] = {}
    for rank, note in sorted(notes.items()):
        values.setdefault(json.dumps(note.get(key), sort_keys=True), []).append(rank)
    if len(values) < 2:
        return ""
    ordered = sorted(values.items(), key=lambda side: len(side[1]))
    return "; ".join(f"{_some(ranks, names)}: {value}" for value, ranks in ordered[:4])


def _some(ranks: List[int], names: Sequence[str]) -> str:
    more = f" and {len(ranks) - 3} more" if len(ranks) > 3 else ""
    return ", ".join(names[rank] for rank in ranks[:3]) + more


# Runs beside the process: holding the interpreter, TensorFlow lets no thread of it print.
_WATCHDOG = """
import os, select, signal, sys
seconds, message, pid = float(sys.argv[1]), sys.argv[2], int(sys.argv[3])
if not select.select([0], [], [], seconds)[0]:
    os.write(2, message.encode())
    if not select.select([0], [], [], 10)[0] and os.getppid() == pid:
        os.kill(pid, signal.SIGKILL)
"""


@contextlib.contextmanager
def deadline(seconds: float, message: str) -> Iterator[None]:
    """Ends this process with `message` and all threads' tracebacks if the block takes longer.

    It works while C++ code holds the interpreter, when neither threads nor signal handlers of
    Python run. The exit status is 1.
    """
    watchdog = subprocess.Popen(
        [sys.executable, "-S", "-c", _WATCHDOG, str(seconds), message + "\n", str(os.getpid())],
        stdin=subprocess.PIPE,
        start_new_session=True,
    )
    # The message first, then the traceback, which ends the process.
    faulthandler.dump_traceback_later(seconds + 0.5, exit=True)
    try:
        yield
    finally:
        faulthandler.cancel_dump_traceback_later()
        watchdog.send_signal(signal.SIGKILL)
        watchdog.communicate()
