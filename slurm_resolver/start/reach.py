"""Waits until the tasks reach each other at the ports at which TensorFlow will listen.

Otherwise TensorFlow waits without a message, at its start or in the first step. A firewall may let
only the port of the coordination service pass, or packets of one direction.

The tasks ask each other in rounds. After each one they exchange who did not answer whom, so that
all of them stop after the same round. Where all answer at once there is one round.
"""

from __future__ import annotations

from collections.abc import Collection
from time import monotonic, sleep

from slurm_resolver.cluster.cluster import Cluster
from slurm_resolver.coordination.training_group import Group
from slurm_resolver.errors import RendezvousError
from slurm_resolver.log import warn
from slurm_resolver.start.probe import find_unreached, tasks_to_ask
from slurm_resolver.timeouts import Timeouts
from slurm_resolver.wording import shorten

_PAUSE = 1.0
_ASKING_SECONDS = 5.0  # a round takes about as long if packets are dropped
_ROUND_SECONDS = 30.0  # for a round that begins when the time is up: look-ups of names take long
_MOST_NAMED = 4


def wait_until_reached(
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
    notice_at = began + Timeouts.first_notice - _ASKING_SECONDS
    asked = tasks_to_ask(address.rank, [tasks[rank] for rank in sorted({*waiting.ranks, *serving})])
    while True:
        unreached = find_unreached(asked, serving)
        asked = [tasks[rank] for rank in unreached]
        now = monotonic()
        notes = waiting.gather(
            "the test of the ports",
            (now > until, [*unreached.items()][:_MOST_NAMED]),
            max(0.0, until - now) + _ROUND_SECONDS,
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
