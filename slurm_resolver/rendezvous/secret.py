"""What the tasks of a step know and others on the network do not, and how they come by it.

By the first of these means that there is; all tasks of a step find the same one:

1. SLURM_RESOLVER_SECRET: srun hands the environment on to all tasks, and only the user's own
   processes and root can read a process's environment: proc(5), /proc/PID/environ.
2. PMI-2, where the step has it and all tasks have come to its fence: its store is the step's own.
3. munge, where the site has it: only processes of the user can read the key.
4. A file of mode 0600 in a folder that all nodes share.

The process that others connect to offers one of them. Nobody has proved anything when an offer is
read, so it is a hint and no more: whatever it says, a stranger neither learns the key nor has one
that he knows taken for it. He could offer less than there is; therefore a process takes nothing but
what it would offer itself.
"""

from __future__ import annotations

import os
from typing import Dict, List, Mapping, Tuple

from slurm_resolver.errors import RendezvousError
from slurm_resolver.rendezvous.handshake import Secret
from slurm_resolver.rendezvous.munge import find_munge
from slurm_resolver.rendezvous.secret_file import FOLDER_VARIABLE, SecretFileError, find_folder
from slurm_resolver.rendezvous.secret_means import (
    FILE,
    MAKE_ONE,
    MUNGE,
    OTHER_MEANS,
    PMI2,
    VARIABLE,
    FileMeans,
    Means,
    MungeMeans,
    Pmi2Means,
    VariableMeans,
)

MEANS_VARIABLE = "SLURM_RESOLVER_SECRET_MEANS"

_NONE = "none"
_BY_STRENGTH = (VARIABLE, PMI2, MUNGE, FILE, "")
_HAS = {
    VARIABLE: f"has {VARIABLE}",
    PMI2: "has its secret by PMI-2",
    MUNGE: "has its secret by munge",
    FILE: "has its secret in a file",
    "": "offers no secret",
}
_SHORTEST = 16  # characters

_by_pmi2: Dict[int, bytes] = {}  # by process
_no_pmi2: Dict[int, str] = {}  # by process, why it has none
_own: Dict[Tuple[int, str, str], Secret] = {}  # by process, identity and means


def remember_shared(key: bytes) -> None:
    """Takes a random key that all tasks of the step have got by PMI-2, for this process."""
    _by_pmi2[os.getpid()] = key


def explain_missing_pmi2(problem: str) -> None:
    """Takes why this process gets no key by PMI-2, although its step has it, for messages."""
    _no_pmi2[os.getpid()] = problem


def own_secret(identity: str) -> Secret:
    """Returns the secret that this process, to which others connect, asks of them.

    Args:
        identity: of the step; a process has one secret for each.

    Raises:
        RendezvousError: where a variable's value cannot be used, or a means is there that does not
            do what it should.
    """
    means = find_means()
    key = (os.getpid(), identity, means.name)  # a process that was forked from this has its own
    if key not in _own:
        _own[key] = means.make()
    return _own[key]


def key_of_offer(offer: Mapping[str, object], name: str) -> bytes:
    """Returns the secret that an offer stands for.

    Args:
        offer: from a process that has proved nothing yet.
        name: of that process, for messages.

    Raises:
        RendezvousError: where the offer is not what this process would offer itself, or the secret
            is not to be had.
    """
    means, offered = find_means(), offer.get("means", "")
    if offered != means.name:
        raise RendezvousError(_explain_difference(offered, means, name))
    return means.key_of(offer, name)


def describe_means() -> Tuple[str, str]:
    """Returns the means ("" where there is none), and in a sentence what protects the tasks.

    Raises:
        RendezvousError: where a variable's value cannot be used.
    """
    means = find_means()
    return means.name, means.protection


def find_means() -> Means:
    """Returns the first means that there is. It starts no process, and asks nobody.

    Raises:
        RendezvousError: where a variable's value cannot be used, or names a means that is not here.
    """
    value, wanted = os.environ.get(VARIABLE), os.environ.get(MEANS_VARIABLE)
    if wanted not in (None, MUNGE, FILE, _NONE):
        raise RendezvousError(
            f"{MEANS_VARIABLE} is {wanted!r}: expected is {MUNGE}, {FILE} or {_NONE}."
        )
    if value is not None:
        if len(value) < _SHORTEST:
            raise RendezvousError(
                f"{VARIABLE} has {len(value)} characters: expected are at least {_SHORTEST} that "
                f"nobody can guess. Make one: {MAKE_ONE}."
            )
        return VariableMeans(value)
    if wanted is None and os.getpid() in _by_pmi2:
        return Pmi2Means(_by_pmi2[os.getpid()])
    if wanted == _NONE:
        return Means(f"{MEANS_VARIABLE} is {_NONE}")
    reasons: List[str] = []
    if wanted in (None, MUNGE):
        munge = find_munge()
        if not isinstance(munge, str):
            return MungeMeans(munge)
        reasons.append(munge)
    if wanted in (None, FILE):
        try:
            folder = find_folder()
        except SecretFileError as error:
            raise RendezvousError(str(error)) from error
        if not isinstance(folder, str):
            return FileMeans(folder)
        reasons.append(folder)
    if wanted is None:
        return Means(", ".join([f"{VARIABLE} is not set", *reasons]))
    remedy = "Have munged started on all nodes of the job."
    if wanted == FILE:
        remedy = f"Name a folder that all nodes share in {FOLDER_VARIABLE}."
    raise RendezvousError(f"{MEANS_VARIABLE} is {wanted}, but {reasons[0]}. {remedy} {OTHER_MEANS}")


def _explain_difference(offered: object, own: Means, name: str) -> str:
    """Returns why an offer is not taken."""
    if not isinstance(offered, str) or offered not in _BY_STRENGTH:
        return (
            f"{name} offers a secret in a way that this task does not know: {str(offered)[:40]!r}. "
            "All tasks need the same version of slurm_resolver."
        )
    same = f"To use the same in all tasks: {MAKE_ONE}."
    if own.name == VARIABLE:
        return (
            f"{name} {_HAS[offered]}, but in this task {VARIABLE} is set. Either srun has not "
            "handed it on to all tasks (--export), or another user's program answers there. "
            f"{same}"
        )
    if offered == VARIABLE:
        return (
            f"{name} {_HAS[offered]}, but in this task it is not set: srun has not handed it on "
            f"(--export). {same}"
        )
    if own.name == PMI2:
        return (
            f"{name} {_HAS[offered]}, but the tasks have told each other one by PMI-2. Either the "
            "task there does not use PMI-2, as its program may use MPI or another one has used it "
            f"before, or another user's program answers. {same} To do without PMI-2 in all tasks: "
            "SLURM_RESOLVER_PMI2=off."
        )
    if offered == PMI2:
        why = _no_pmi2.get(
            os.getpid(), "not all tasks have come, or another program of its task was first"
        )
        return (
            f"{name} {_HAS[offered]}, but this task cannot get it: {why}. {same} To do without "
            "PMI-2 in all tasks: SLURM_RESOLVER_PMI2=off."
        )
    if _BY_STRENGTH.index(offered) < _BY_STRENGTH.index(own.name):
        return f"{name} {_HAS[offered]}, but this task cannot get it: {own.why}. {same}"
    here = "munge is there" if own.name == MUNGE else "there is a folder that all nodes share"
    without = "" if offered else f" To do without in all tasks: {MEANS_VARIABLE}={_NONE}."
    return (
        f"{name} {_HAS[offered]}, but on this node {here}: {own.why}. Either that lacks there, or "
        f"another user's program answers. {same}{without}"
    )
