"""Which process stands for its task: the first that asks, until it ends.

A child process inherits the variables of its task and would take its place among the others; so
would a second program in the same task. The first process binds a name that the kernel knows on
this node, and frees when the process ends, however it does: a program that comes after it, or that
it turns into by `exec`, can have the name again. A child by `fork` gives its copy up.
"""

from __future__ import annotations

import errno
import hashlib
import os
import socket
import struct
import threading
from typing import Dict, Optional

from slurm_resolver.rendezvous.point import Rendezvous

_lock = threading.Lock()
_claims: Dict[str, Optional[socket.socket]] = {}  # by name; None where the kernel knows no names


def claim_task(rendezvous: Rendezvous) -> bool:
    """Returns whether this process stands for its task; if so, no other does as long as it runs."""
    name = _name(rendezvous)
    with _lock:
        if name not in _claims:
            try:
                _claims[name] = _bind(name)
            except OSError as error:
                if error.errno == errno.EADDRINUSE:
                    return False
                _claims[name] = None  # then every process counts, as without this
        return True


def find_claimant(rendezvous: Rendezvous) -> Optional[int]:
    """Returns the id of the process that stands for the task; None where it cannot be known."""
    with socket.socket(socket.AF_UNIX) as asking:
        asking.setblocking(False)
        try:
            asking.connect(_name(rendezvous))
            answer = asking.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12)
        except OSError:
            return None
    pid: int = struct.unpack("3i", answer)[0]
    return pid or None


def _bind(name: str) -> socket.socket:
    claim = socket.socket(socket.AF_UNIX)
    try:
        claim.bind(name)
        claim.listen()  # for find_claimant; nothing is ever accepted
    except OSError:
        claim.close()
        raise
    return claim


def _name(rendezvous: Rendezvous) -> str:
    """Returns a name in Linux's abstract namespace: it needs no file, and so leaves none."""
    task = f"{os.getuid()} {rendezvous.identity} {rendezvous.rank}"
    return f"\0slurm_resolver {hashlib.sha256(task.encode()).hexdigest()[:32]}"


def give_up_tasks() -> None:
    """Lets other processes stand for the tasks that this one has stood for."""
    for claim in _claims.values():
        if claim is not None:
            claim.close()
    _claims.clear()


def _give_up_in_child() -> None:
    global _lock
    _lock = threading.Lock()  # another thread may have held it
    give_up_tasks()


os.register_at_fork(after_in_child=_give_up_in_child)
