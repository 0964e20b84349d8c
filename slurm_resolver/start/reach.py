"""Waits until the tasks reach each other at the ports at which TensorFlow will listen.

Otherwise TensorFlow waits without a message, at its start or in the first step. A firewall may let
only the port of the coordination service pass, or packets of one direction.

The tasks ask each other in rounds. After each one they exchange who did not answer whom, so that
all of them stop after the same round. Where all answer at once there is one round.
"""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Collection, Mapping, Sequence
from time import monotonic

from slurm_resolver.cluster.addresses import Task
from slurm_resolver.cluster.cluster import Cluster
from slurm_resolver.coordination.client import Client
from slurm_resolver.errors import RendezvousError
from slurm_resolver.log import warn
from slurm_resolver.start.probe import ask_rank, call, find_unreached, tasks_to_ask
from slurm_resolver.wording import shorten

_PAUSE = 1.0
_ROUND_SECONDS = 30.0  # for a round that begins when the time is up: look-ups of names take long
# seconds until those that do not answer are reported
_FIRST_NOTICE = 25.0  # a round takes about 5 s if packets are dropped
_NEXT_NOTICES = 60.0
_MOST_NAMED = 4

Unreached = Sequence[tuple[int, str]]  # the ranks that did not answer a task, and why


def wait_until_reached(
    cluster: Cluster,
    client: Client,
    waiting: Collection[int],
    serving: Collection[int],
    until: float,
) -> None:
    """Returns when all tasks answer each other at their ports.

    Args:
        cluster: this task's cluster.
        client: its connection to the coordination service.
        waiting: the ranks that call this, and listen at their ports as `probe.listening` does.
        serving: the ranks at whose ports servers of TensorFlow listen, or soon will.
        until: the time of `time.monotonic` when to give up.

    Raises:
        RendezvousError: in every task, if some do not answer in time. It names them.
    """
    own = cluster.task
    assert own
    assert cluster.service
    others = [task.rank for task in cluster.tasks if task.rank not in waiting]
    next_notice = monotonic() + _FIRST_NOTICE
    began = monotonic()
    asked = tasks_to_ask(
        own.rank,
        [task for task in cluster.tasks if task.rank in waiting or task.rank in serving],
    )

    def ask(task: Task) -> None:
        if task.rank in waiting:
            ask_rank(task)
        else:
            call(task.address).close()

    while True:
        problems = find_unreached(asked, ask)
        asked = [task for task in asked if task.rank in problems]
        now = monotonic()
        note = {
            "unreached": [*problems.items()][:_MOST_NAMED],
            "gives_up": now > until,
        }
        seconds = max(0.0, until - now) + _ROUND_SECONDS
        answers = client.gather("the test of the ports", note, seconds, without=others)
        notes = {rank: note for rank, note in enumerate(answers) if note}
        told = describe_unreached(
            {rank: note["unreached"] for rank, note in notes.items()}, cluster
        )
        if not told:
            return
        text = f"{told}{cluster.service.remedy}"
        if any(note["gives_up"] for note in notes.values()):
            raise RendezvousError(f"not ready: {text}.")
        if own.rank == min(waiting) and monotonic() > next_notice:
            next_notice += _NEXT_NOTICES
            warn("has waited %.0f s: %s", monotonic() - began, text)
        time.sleep(_PAUSE)


def describe_unreached(unreached: Mapping[int, Unreached], cluster: Cluster) -> str:
    """Returns which tasks do not answer, by the ranks that asked them; '' if all do."""
    asking = defaultdict(list)
    for rank, problems in unreached.items():
        for silent, why in problems:
            asking[silent, why].append(cluster.name_of(rank))
    texts = [
        f"{cluster.name_of(silent)} does not answer {shorten(names, _MOST_NAMED)} at "
        f"{cluster.tasks[silent].address}: {why}"
        for (silent, why), names in asking.items()
    ]
    return shorten(texts, _MOST_NAMED)
