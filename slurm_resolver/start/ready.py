"""Waits, before TensorFlow starts, until all tasks are present, agree and reach each other.

If a task is missing, different or out of reach, TensorFlow waits for ever and prints nothing. A
firewall may let only the port of the coordination service pass, or packets of one direction. So the
tasks ask each other at the ports at which TensorFlow will listen, in rounds. After each one they
exchange who did not answer whom, so that all of them stop after the same round. Where all answer at
once there is one round.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from hashlib import sha256
from json import dumps
from time import monotonic, sleep
from typing import Any

from slurm_resolver.cluster.cluster import Cluster
from slurm_resolver.cluster.roles import ranks_of
from slurm_resolver.coordination import named
from slurm_resolver.coordination.client import connect
from slurm_resolver.coordination.training_group import Group
from slurm_resolver.errors import RendezvousError
from slurm_resolver.log import warn
from slurm_resolver.start.keras_version import find_tensorflow_version
from slurm_resolver.start.probe import find_unreached, listening, tasks_to_ask
from slurm_resolver.timeouts import Timeouts
from slurm_resolver.version import __version__
from slurm_resolver.wording import shorten

_PAUSE = 1.0
_MOST_NAMED = 4

Note = dict[str, Any]
Notes = Mapping[int, Note]  # by rank


def wait_until_ready(
    cluster: Cluster, timeout: float, jobs: Collection[str] | None = None
) -> Group | None:
    """Returns when all tasks have called this, agree, and reach each other at their ports.

    Args:
        cluster: this task's cluster.
        timeout: seconds in which all tasks have to call this.
        jobs: the jobs whose tasks call it; None for all.

    Returns:
        The tasks that have called it; None if this one is alone.

    Raises:
        RendezvousError: in every task, at most a few seconds after `timeout` seconds. It names the
            tasks that are missing, the first thing that tasks disagree on with the values, the
            ports that are taken, or the tasks and ports that do not answer.
    """
    until = monotonic() + timeout
    group = find_group(cluster, jobs)
    if not group:
        return None
    assert cluster.task
    with listening(cluster.task) as problem:
        note = {"facts": agreement_facts(cluster), "port_taken": problem, "waits": True}
        notes = group.client.gather("the start", note, timeout, group.ranks)
        problems = [
            f"{cluster.name_of(rank)} cannot listen at {note['port_taken']}"
            for rank, note in notes.items()
            if note["port_taken"]
        ]
        problems += filter(None, [find_disagreement(notes, cluster)])
        if problems:
            raise RendezvousError(
                f"not ready: {'. '.join(problems)}. All tasks must run the same script with the "
                "same arguments and packages, on ports that no other process uses."
            )
        waiting = Group(group.client, [rank for rank, note in notes.items() if note["waits"]])
        _wait_until_reached(cluster, waiting, notes.keys() - waiting.ranks, until)
    # What TensorFlow of another task sends to a port before it is closed here is never answered.
    waiting.gather("the start of TensorFlow", None, 60.0)  # a machine may have too many processes
    return group


def _wait_until_reached(
    cluster: Cluster,
    waiting: Group,
    serving: Collection[int],
    until: float,
) -> None:
    """Returns when all tasks answer each other at their ports.

    Args:
        cluster: this task's cluster.
        waiting: the tasks that call this, and listen at their ports as `probe.listening` does.
        serving: the ranks at whose ports servers of TensorFlow listen, or soon will.
        until: the time of `time.monotonic` when to give up.

    Raises:
        RendezvousError: in every task, if some do not answer in time. It names each of them, and a
            task that it does not answer.
    """
    address = waiting.client.address
    tasks = cluster.tasks
    began = monotonic()
    notice_at = began + Timeouts.first_notice - 5.0  # a round takes so long if packets are dropped
    asked = tasks_to_ask(address.rank, [tasks[rank] for rank in sorted({*waiting.ranks, *serving})])
    while True:
        unreached = find_unreached(asked, serving)
        asked = [tasks[rank] for rank in unreached]
        now = monotonic()
        notes = waiting.gather(
            "the test of the ports",
            (now > until, [*unreached.items()][:_MOST_NAMED]),
            # A round may begin when the time is up, and look-ups of names take long.
            max(0.0, until - now) + 30.0,
        )
        problems = {
            silent: f"{cluster.name_of(silent)} does not answer {name} at "
            f"{tasks[silent].address}: {why}"
            for name, (_, unanswered) in notes.items()
            for silent, why in unanswered
        }
        if not problems:
            return
        text = f"{shorten([*problems.values()], _MOST_NAMED)}{address.remedy}"
        if any(gives_up for gives_up, _ in notes.values()):
            raise RendezvousError(f"not ready: {text}.")
        if address.rank == waiting.ranks[0] and now > notice_at:
            notice_at += Timeouts.next_notices
            warn("has waited %.0f s: %s", now - began, text)
        sleep(_PAUSE)


def offer_readiness(cluster: Cluster) -> None:
    """Tells tasks that call `wait_until_ready` that this one is ready, without waiting for them."""
    group = find_group(cluster)
    assert cluster.task
    if group:
        with listening(cluster.task) as problem:
            note = {"facts": agreement_facts(cluster), "port_taken": problem, "waits": False}
        # from now on, the port is TensorFlow's
        group.client.offer("the start", note)


def find_group(cluster: Cluster, jobs: Collection[str] | None = None) -> Group | None:
    """Returns the tasks with these jobs, or all tasks; None if this process trains alone."""
    if not cluster.service or len(cluster.tasks) < 2:
        return None
    return Group(
        connect(cluster.service, cluster.name_of),
        ranks_of(cluster.roles, jobs or cluster.roles),
    )


def agreement_facts(cluster: Cluster) -> Note:
    """Returns what must be the same in all tasks, by what it is: causes before effects."""
    return {
        "the version of slurm_resolver": __version__,
        "the version of TensorFlow": find_tensorflow_version(),
        "the jobs (argument jobs)": {job: len(ranks) for job, ranks in cluster.roles.items()},
        "where the ranks run, or their jobs or addresses (arguments placement, het_groups, "
        "port_base and node_address)": sha256(repr(cluster.tasks).encode()).hexdigest()[:16],
    }


def find_disagreement(notes: Notes, cluster: Cluster) -> str:
    """Returns the first difference between the tasks, with its values; '' if all agree."""
    # Tasks with another version of this package may tell other facts, or none.
    facts = {rank: note.get("facts", {}) for rank, note in notes.items()}
    for what in max(facts.values(), key=len):
        lines = named(
            {rank: dumps(fact.get(what), sort_keys=True) for rank, fact in facts.items()},
            cluster.name_of,
        )
        if len(lines) > 1:
            return f"the tasks disagree on {what}: {'; '.join(lines[:4])}"
    return ""
