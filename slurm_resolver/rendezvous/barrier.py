"""All tasks of a step meet at one of them: each sends a note, all get the same answer.

The first task of each node collects the notes of its node and brings them to the meeting point; a
task that does not find it goes to the meeting point itself. After the handshake these messages are
sent, upwards on the left, downwards on the right:

    {"rank": 3, "visit": "…", "seconds": 60, "note": {…}}     {"taken": true}
    {"left": 3}                                               {"here": 1}
    {"here": 1, "silent": [3]}                                {"answer": {…}}, {"error": "…"}
    {"there": 1}                                              {"there": 1}, {"refused": 3}
    {"again": true}                                           {"again": true}

The meeting point may call a node that does not come, and says ``{"call": true}`` first.

A visit is a task that comes, with the seconds that it can wait; it may come again, where its
connection was lost, and counts its turns. When all have come the meeting point asks whether they
are still there, and the answer goes to all. It is an error as soon as the time of the first one is
up. A task that comes through its node's first one asks that one whether it is there.

Where the step has PMI-2 they share a secret by it first, see `first_half`: who has waited for it in
vain comes to a first meeting, says that it will come again as soon as it has the secret, and does.
"""

from __future__ import annotations

import secrets
import time
from typing import TYPE_CHECKING, Callable, List, Optional, Sequence, Union

from slurm_resolver.errors import RendezvousError
from slurm_resolver.rendezvous.caller import AddressesOf
from slurm_resolver.rendezvous.gathering import LONGEST_SECONDS, Note, SharedMeanwhile, Visit
from slurm_resolver.rendezvous.host import Decide, Host
from slurm_resolver.rendezvous.member import Member
from slurm_resolver.rendezvous.point import Rendezvous
from slurm_resolver.rendezvous.secret import find_means, key_of_offer
from slurm_resolver.rendezvous.wire import LIMITS, Limits, Message

if TYPE_CHECKING:
    from slurm_resolver.rendezvous.first_half import FirstHalf

# For all tasks to come to PMI-2's fence, at most an eighth of the time: a first meeting tells more.
_SHARE_SECONDS = 0.2
_AGAIN_SECONDS = 2.0  # at least, for the second meeting


def meet(
    rendezvous: Rendezvous,
    purpose: str,
    names: Sequence[str],
    note: Note,
    decide: Decide,
    timeout: float,
    limits: Limits = LIMITS,
    addresses_of: Optional[AddressesOf] = None,
    by_pmi2: Optional[Callable[[FirstHalf], Message]] = None,
) -> Message:
    """Sends this task's note to the meeting point, and returns the answer that all tasks get.

    Args:
        rendezvous: where to meet.
        purpose: a word that tells this meeting from other meetings of the same step.
        names: by rank, how messages name each task that has to come.
        note: what this task tells; at most 64 KiB of JSON.
        decide: called at the meeting point only, with the notes of all tasks by rank. To each is
            added from which address it came over the network, `came_from`, and at which of the
            meeting point's, `reached_at`; None for those of its own node. It returns the answer, or
            raises a RendezvousError, which every task then raises.
        timeout: seconds until this task raises. The first task whose time is up ends the meeting
            for all that are there: they raise, with the names of the tasks that have not come.
        limits: what a connection may cost.
        addresses_of: tells the meeting point where to call nodes that do not come by themselves.
        by_pmi2: finds the answer by what the tasks have shared by PMI-2, alike in all of them. Then
            they need not meet where that is shared.

    Raises:
        RendezvousError: where not all tasks have come, the meeting point cannot be reached, or
            `decide` raises it.
    """
    find_means()  # a variable that cannot be used is told by every task for itself
    identity = f"{rendezvous.identity}:{purpose}"
    until = time.monotonic() + min(timeout, LONGEST_SECONDS)
    visit = Visit(note, secrets.token_hex(8), None, until)

    came: List[Union[Host, Member]] = []

    def come(half: Optional[FirstHalf] = None) -> Message:
        if not rendezvous.is_host:
            member = Member(rendezvous, identity, names, visit, key_of_offer, limits, half)
            came.append(member)
            if isinstance(came[0], Member):
                member.go_on_from(came[0])
            return member.run()
        host = Host(rendezvous, identity, names, visit, limits, half)
        came.append(host)
        if isinstance(came[0], Host):
            host.go_on_from(came[0])
        if addresses_of is not None and rendezvous.nodes:
            host.may_call(addresses_of)
        return host.run(decide)

    answer: Optional[Message] = None
    if rendezvous.pmi2 is not None:
        from slurm_resolver.rendezvous import first_half  # few steps have PMI-2

        half = first_half.find_half(rendezvous)
        if half is not None and not half.wait(min(_SHARE_SECONDS, timeout / 8)):
            try:
                answer = come(half)
            except SharedMeanwhile:
                half.wait(0)
                until = max(until, time.monotonic() + _AGAIN_SECONDS)
                visit = Visit(note, secrets.token_hex(8), None, until)
            except RendezvousError:  # such as a port that is taken, which PMI-2 does not need
                if by_pmi2 is None or not half.wait(max(0.0, until - time.monotonic())):
                    raise
            else:
                if "error" not in answer or answer.get("all_came"):
                    half.give_up()
        if half is not None and half.is_shared:
            if by_pmi2 is not None:
                return by_pmi2(half)
            identity = f"{identity} by PMI-2"
            rendezvous = rendezvous._replace(addresses=half.addresses)
    if answer is None:
        answer = come()
    if "error" in answer:
        all_came = bool(answer.get("all_came"))
        shared = not answer.get("unreached")
        raise RendezvousError(str(answer["error"]), shared, rendezvous.is_host, all_came)
    found = answer.get("answer")
    if not isinstance(found, dict):
        raise RendezvousError(
            f"{rendezvous.name} gave an answer of an unknown form: {answer!r:.200}"
        )
    return found
