"""Waits before TensorFlow starts until all tasks have come, agree and have free ports.

If a task is missing or different, TensorFlow waits for ever and prints nothing.
"""

from __future__ import annotations

from typing import Any, Collection, Dict, Optional

from slurm_resolver.cluster.cluster import Cluster
from slurm_resolver.coordination.client import Client, connect
from slurm_resolver.errors import RendezvousError
from slurm_resolver.preflight.agreement import COMPARED_FACTS, agreement_facts, find_disagreement
from slurm_resolver.preflight.probe import Listener

Note = Dict[str, Any]


def wait_until_ready(
    cluster: Cluster, timeout: float, jobs: Optional[Collection[str]] = None
) -> Optional[Client]:
    """Returns when all tasks have called this, agree, and can listen at their ports.

    Args:
        cluster: of this task.
        timeout: seconds in which all tasks have to call this.
        jobs: the jobs whose tasks call it; None for all.

    Returns:
        This task's connection to the coordination service; None where it is alone, and where its
        program was started again.

    Raises:
        RendezvousError: in every task, at most a few seconds after `timeout` seconds. It names the
            tasks that are missing, the first thing that tasks disagree on with the values, or the
            ports that are taken.
    """
    if cluster.service is None or len(cluster.tasks) < 2 or cluster.was_restarted:
        return None
    client = connect(cluster.service)
    client.name_of = cluster.name_of
    note = {**agreement_facts(cluster), "port_taken": _port_taken(cluster)}
    absent = [task.rank for task in cluster.tasks if jobs is not None and task.job not in jobs]
    notes = client.gather("the start", note, timeout, without=absent)
    _judge({rank: note for rank, note in enumerate(notes) if note is not None}, cluster)
    return client


def offer_readiness(cluster: Cluster) -> None:
    """Tells tasks that call `wait_until_ready` that this one is ready, without waiting for them."""
    if cluster.service is None or len(cluster.tasks) < 2 or cluster.was_restarted:
        return
    client = connect(cluster.service)
    client.name_of = cluster.name_of
    client.offer("the start", {**agreement_facts(cluster), "port_taken": _port_taken(cluster)})


def _port_taken(cluster: Cluster) -> Optional[str]:
    """Returns why this task cannot listen at its port; None where it can."""
    assert cluster.task is not None
    listener = Listener(cluster.task.rank, int(cluster.task.address.rpartition(":")[2]))
    listener.close()
    return listener.problem


def _judge(notes: Dict[int, Note], cluster: Cluster) -> None:
    problems = [
        f"{cluster.name_of(rank)} cannot listen at {note['port_taken']}"
        for rank, note in sorted(notes.items())
        if note["port_taken"] is not None
    ]
    for key, what in COMPARED_FACTS:
        difference = find_disagreement(notes, key, cluster.name_of)
        if difference:
            problems.append(f"the tasks disagree on {what}: {difference}")
            break  # the further differences are effects of this one
    if problems:
        raise RendezvousError(
            f"not ready: {'. '.join(problems)}. All tasks must run the same script with the same "
            "arguments and packages, on ports that no other process uses."
        )
