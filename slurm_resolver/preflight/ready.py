"""Waits before TensorFlow starts until all tasks have come, agree and have free ports.

If a task is missing or different, TensorFlow waits for ever and prints nothing. Here the tasks tell
each other, and find it out within a second of the last one.
"""

from __future__ import annotations

from typing import Any, Dict, Optional, Sequence

from slurm_resolver.cluster.cluster import Cluster
from slurm_resolver.cluster.meeting import meet
from slurm_resolver.errors import RendezvousError
from slurm_resolver.preflight.agreement import (
    COMPARED_FACTS,
    agreement_facts,
    find_disagreement,
    task_names,
)
from slurm_resolver.rendezvous.gathering import Note
from slurm_resolver.rendezvous.probe import Listener


def wait_until_ready(cluster: Cluster, timeout: float) -> None:
    """Returns when all tasks of the step have called this, agree, and can listen at their ports.

    Raises:
        RendezvousError: in every task, at most a few seconds after `timeout` seconds. It names the
            tasks that are missing, the first thing that tasks disagree on with the values, or the
            ports that are taken.
    """
    if cluster.rendezvous is None or len(cluster.tasks) < 2 or cluster.was_restarted:
        return
    names = task_names(cluster)
    note = {**agreement_facts(cluster), "port_taken": _port_taken(cluster)}
    meet(cluster.rendezvous, "ready", names, note, lambda notes: _judge(notes, names), timeout)


def _port_taken(cluster: Cluster) -> Optional[str]:
    """Returns why this task cannot listen at its port; None where it can."""
    assert cluster.task is not None
    listener = Listener(cluster.task.rank, int(cluster.task.address.rpartition(":")[2]))
    listener.close()
    return listener.problem


def _judge(notes: Dict[int, Note], names: Sequence[str]) -> Dict[str, Any]:
    problems = [
        f"{names[rank]} cannot listen at {note['port_taken']}"
        for rank, note in sorted(notes.items())
        if note["port_taken"] is not None
    ]
    for key, what in COMPARED_FACTS:
        difference = find_disagreement(notes, key, names)
        if difference:
            problems.append(f"the tasks disagree on {what}: {difference}")
            break  # the further differences are effects of this one
    if problems:
        raise RendezvousError(
            f"not ready: {'. '.join(problems)}. All tasks must run the same script with the same "
            "arguments and packages, on ports that no other process uses."
        )
    return {"ready": True}
