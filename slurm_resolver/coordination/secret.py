"""The secret by which the tasks of a step recognize each other: the first of these.

1. SLURM_RESOLVER_SECRET, which srun passes to all tasks. Only the user's own processes and root
   can read a process's environment.
2. munge: the service encrypts a random key with the command ``munge``, and only processes of the
   same user can decrypt it, with ``unmunge``.
3. None. TensorFlow's own ports are not protected either.

A task uses only the kind of secret that it would choose itself, so that a stranger cannot make it
connect without a secret.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from math import inf
from pathlib import Path
from secrets import token_bytes, token_hex
from shutil import which
from time import monotonic

from slurm_resolver.errors import RendezvousError

VARIABLE = "SLURM_RESOLVER_SECRET"
MUNGE_SOCKET_VARIABLE = "SLURM_RESOLVER_MUNGE_SOCKET"


class RefusedError(RendezvousError):
    """This task cannot take part in the step; retrying does not help."""


_SHORTEST = 16  # characters
_MUNGE_SOCKET = "/run/munge/munge.socket.2"
_MUNGE_SECONDS = 30.0
_RENEW_SECONDS = 120.0  # munged refuses credentials older than 5 minutes by default
_REPLAYED = 17  # unmunge(1) only: the credential is valid, but was decrypted here before
REMEDY = f"Set {VARIABLE} once, before srun: export {VARIABLE}=$(openssl rand -hex 32)"
# how messages name a task's means to recognize the others; beside them, VARIABLE
MUNGE = "munge"
NONE = "no secret"

# The keys that munge has decrypted here, by the random names that their services gave them. It may
# take longer than a handshake, and no longer run when a task returns.
_keys: dict[str, bytes] = {}


class Secret:
    """The secret of a service.

    Attributes:
        key: the secret; b"" without one.
        offer: what a task of the same user needs to obtain it: with munge, the name of the key and
            a credential, which contains the key; else nothing.
        renew_at: when to call `renew`, which may take long; inf without munge.
    """

    renew_at = inf

    def __init__(self) -> None:
        """Raises RendezvousError if the variable has an unusable value, or munge fails."""
        self.offer: dict[str, str] = {}
        self.key = os.environb.get(VARIABLE.encode(), b"")
        if find_means() == MUNGE:
            self.key = token_bytes(32)
            self.offer["key"] = token_hex(16)
            self.renew()

    def renew(self) -> None:
        """Encrypts the key again, before the credential of the offer becomes too old."""
        self.renew_at = monotonic() + _RENEW_SECONDS
        # Sites can choose a default cipher that does not encrypt.
        options = ["--restrict-uid", str(os.geteuid()), "--cipher=aes128"]
        self.offer["credential"] = _run_munge("munge", options, self.key.hex()).strip()


def accept_offer(offer: Mapping[str, str]) -> bytes:
    """Returns the secret that a service with this offer has, if this task has the same kind.

    Otherwise it is a key with which no proof is right. Raises RendezvousError if munge fails.
    """
    if find_means() != MUNGE:
        return os.environb.get(VARIABLE.encode(), b"")
    if not offer:
        return token_bytes(32)
    name = offer["key"]
    if name not in _keys:
        # Any user can encrypt a key for this user; only this user's own is accepted.
        text = _run_munge("unmunge", ["--numeric", "--keys=UID"], offer["credential"])
        match = re.fullmatch(rf"UID:\s*{os.geteuid()}\s+([0-9a-f]{{64}})\s*", text)
        if not match:
            raise RendezvousError(f"the service's munge credential is another user's. {REMEDY}.")
        _keys[name] = bytes.fromhex(match[1])
    return _keys[name]


def find_means() -> str:
    """Returns VARIABLE, MUNGE or NONE; raises RefusedError if the variable is too short."""
    value = os.environ.get(VARIABLE)
    if value is None:
        return MUNGE if which("unmunge") and Path(_munge_socket()).is_socket() else NONE
    if len(value) < _SHORTEST:
        raise RefusedError(
            f"{VARIABLE} has {len(value)} characters; expected at least {_SHORTEST} that nobody "
            f"can guess. {REMEDY}."
        )
    return VARIABLE


def _munge_socket() -> str:
    return os.environ.get(MUNGE_SOCKET_VARIABLE) or _MUNGE_SOCKET


def _run_munge(program: str, options: list[str], text: str) -> str:
    import subprocess  # few sites need it

    try:
        done = subprocess.run(
            [program, "--socket", _munge_socket(), *options],
            input=text,
            capture_output=True,
            text=True,
            errors="replace",  # a stranger may offer anything
            timeout=_MUNGE_SECONDS,
        )
        if done.returncode in (0, _REPLAYED):
            return done.stdout
        reason = done.stderr.strip() or f"exit status {done.returncode}"
    except (OSError, subprocess.TimeoutExpired) as error:
        reason = str(error)
    raise RendezvousError(
        f"`{program}` failed on this node: {reason}. Start munged on all nodes of the job, or do "
        f"without it. {REMEDY}."
    )
