"""Before TensorFlow starts: are all tasks there, do they agree, is every port free?

What TensorFlow would answer with silence, the tasks find out in a second by telling each other.
"""

from __future__ import annotations

from typing import Any, Dict, Optional, Sequence

from slurm_resolver.cluster.cluster import Cluster
from slurm_resolver.errors import RendezvousError
from slurm_resolver.preflight.agreement import (
    COMPARED,
    agreement_facts,
    disagreement,
    task_names,
)
from slurm_resolver.rendezvous.barrier import Note, meet
from slurm_resolver.rendezvous.probe import Listener


def wait_until_ready(cluster: Cluster, timeout: float) -> None:
    """Returns when all tasks of the step have called this, agree, and can have their ports.

    Raises:
        RendezvousError: in every task, within `timeout` seconds and a few more: naming the tasks
            that are missing, the first thing that two tasks disagree on with both values, or the
            port that is taken.
    """
    if cluster.rendezvous is None or len(cluster.tasks) < 2:
        return
    names = task_names(cluster)
    note = {**agreement_facts(cluster), "port_taken": _port_taken(cluster)}
    meet(cluster.rendezvous, "ready", names, note, lambda notes: _compare(notes, names), timeout)


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
        told = disagreement(notes, key, names)
        if told:
            problems.append(f"the tasks disagree on {what}: {told}")
            break  # what follows from it would only repeat it
    if problems:
        raise RendezvousError(
            f"not ready: {'. '.join(problems)}. All tasks must run the same script with the same "
            "arguments and packages, on ports that nobody else has."
        )
    return {"ready": True}
