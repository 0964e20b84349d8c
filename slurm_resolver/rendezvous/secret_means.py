"""The means by which the tasks of a step come by a secret; `secret` decides which it is."""

from __future__ import annotations

import contextlib
import hmac
import os
import secrets
import threading
import time
from typing import Callable, Dict, Iterator, Mapping, Tuple

from slurm_resolver.errors import RendezvousError
from slurm_resolver.rendezvous.handshake import NO_SECRET, Secret
from slurm_resolver.rendezvous.munge import Munge, MungeError
from slurm_resolver.rendezvous.secret_file import (
    SecretFileError,
    SharedFolder,
    read_key,
    restore_key,
    write_key,
)

VARIABLE = "SLURM_RESOLVER_SECRET"
PMI2, MUNGE, FILE = "PMI-2", "munge", "file"
MAKE_ONE = f"export {VARIABLE}=$(openssl rand -hex 32), before srun"
OTHER_MEANS = f"Or use another means, which needs nothing of the site: {MAKE_ONE}."

UntrustedOffer = Mapping[str, object]

_KEY_BYTES = 32
_KEYS_KEPT = 64
# Munge's credentials are good for 300 s by default. They can be read later too, see MungeMeans, but
# not by a munged that has been given another key since.
_MUNGE_SECONDS = 150.0
_FILE_SECONDS = 6 * 3600.0  # files older than a day are removed
# How the payload of a credential begins. The user's credentials go to other services as well, where
# others may learn what is in them: this tells that they are not meant here.
_PAYLOAD = b"slurm_resolver secret\n"

_keys: Dict[Tuple[str, str], bytes] = {}  # by where a key was read, and by what it is known there


class Means:
    """No secret, and what the means that give one have in common.

    Attributes:
        name: SLURM_RESOLVER_SECRET, munge, file; "" for no secret.
        why: what was seen that decides it.
        protection: what keeps others from the meetings. Both are sentences without a full stop.
    """

    name = ""

    def __init__(self, why: str) -> None:
        """Takes what was seen."""
        self.why = why
        self.protection = (
            "nothing keeps others on the network from taking part in the tasks' meetings: "
            f"{why}. To keep them out: {MAKE_ONE}"
        )

    def make(self) -> Secret:
        """Returns a new secret.

        Raises:
            RendezvousError: where the means is there and does not do what it should.
        """
        return NO_SECRET

    def key_of(self, offer: UntrustedOffer, name: str) -> bytes:
        """Returns the key that an offer by this means stands for.

        Args:
            offer: from a process that has proved nothing yet.
            name: of that process, for messages.

        Raises:
            RendezvousError: where the key is not to be had.
        """
        return NO_SECRET.key


class VariableMeans(Means):
    """The value of SLURM_RESOLVER_SECRET."""

    name = VARIABLE

    def __init__(self, value: str) -> None:
        """Takes the variable's value."""
        super().__init__(f"{VARIABLE} is set")
        self.protection = f"the tasks know each other by the value of {VARIABLE}"
        # Which step it is for stands in the proofs that are made with the key, so that none of one
        # step is good in another.
        self._key = hmac.new(os.fsencode(value), _PAYLOAD, "sha256").digest()

    def make(self) -> Secret:
        """Returns a secret, as `Means.make`."""
        return Secret(VARIABLE, self._key, {"means": VARIABLE})

    def key_of(self, offer: UntrustedOffer, name: str) -> bytes:
        """Returns an offer's key, as `Means.key_of`."""
        return self._key


class Pmi2Means(Means):
    """A random key that the tasks have told each other by Slurm's own store."""

    name = PMI2

    def __init__(self, key: bytes) -> None:
        """Takes the key."""
        super().__init__("the step has PMI-2, and the tasks have used it")
        self.protection = f"the tasks know each other by what they shared by PMI-2: {self.why}"
        self._key = key

    def make(self) -> Secret:
        """Returns a secret, as `Means.make`."""
        return Secret(PMI2, self._key, {"means": PMI2})

    def key_of(self, offer: UntrustedOffer, name: str) -> bytes:
        """Returns an offer's key, as `Means.key_of`."""
        return self._key


class MungeMeans(Means):
    """A random key in a munge credential, which only processes of this user can decode.

    Whether the credential is old or has been decoded before does not matter, unlike for munge's own
    purpose: it proves nothing about who sent it, and anybody may have it. It carries a key, which
    is safe as it is encrypted and no munged gives it to another user, whenever that is. All tasks
    of a node decode the same one.
    """

    name = MUNGE

    def __init__(self, munge: Munge) -> None:
        """Takes the node's munge."""
        super().__init__(f"munged listens at {munge.path}")
        self.protection = f"the tasks know each other by munge: {self.why}"
        self._munge = munge

    def make(self) -> Secret:
        """Returns a secret, as `Means.make`."""
        key = secrets.token_bytes(_KEY_BYTES)

        def offer() -> Dict[str, str]:
            return {"means": MUNGE, "credential": self._munge.encode(_PAYLOAD + key)}

        try:
            return Secret(MUNGE, key, RenewedOffer(offer, _MUNGE_SECONDS))
        except MungeError as error:
            raise RendezvousError(
                f"{self.why}, but makes no credential: {error}. Have munge looked after on this "
                f"node. {OTHER_MEANS}"
            ) from error

    def key_of(self, offer: UntrustedOffer, name: str) -> bytes:
        """Returns an offer's key, as `Means.key_of`."""
        try:
            return _read_once(self._munge.path, offer.get("credential"), self._decode)
        except MungeError as error:
            raise RendezvousError(
                f"munge on this node cannot read what {name} has made with munge: {error}. If the "
                f"munge of the two nodes have different keys, have that put right. {OTHER_MEANS}"
            ) from error

    def _decode(self, credential: str) -> bytes:
        payload, uid = self._munge.decode(credential)
        if uid != self._munge.own_uid():
            raise MungeError(f"it is of user {uid}, this process is of {self._munge.own_uid()}")
        if not payload.startswith(_PAYLOAD) or len(payload) != len(_PAYLOAD) + _KEY_BYTES:
            raise MungeError("it was made for something else")
        return payload[len(_PAYLOAD) :]


class FileMeans(Means):
    """A random key in a file that only this user can read."""

    name = FILE

    def __init__(self, folder: SharedFolder) -> None:
        """Takes the folder that all nodes share."""
        super().__init__(folder.why)
        self.protection = f"the tasks know each other by a file in {folder.path}: {folder.why}"
        self._folder = folder.path

    def make(self) -> Secret:
        """Returns a secret, as `Means.make`."""
        folder, key = self._folder, secrets.token_bytes(_KEY_BYTES)
        try:
            name = write_key(folder, key)
        except SecretFileError as error:
            raise RendezvousError(f"{error}. {OTHER_MEANS}") from error

        def offer() -> Dict[str, str]:
            restore_key(folder, name, key)
            return {"means": FILE, "file": name}

        return Secret(FILE, key, RenewedOffer(offer, _FILE_SECONDS))

    def key_of(self, offer: UntrustedOffer, name: str) -> bytes:
        """Returns an offer's key, as `Means.key_of`."""
        try:
            return _read_once(
                self._folder, offer.get("file"), lambda file: read_key(self._folder, file)
            )
        except SecretFileError as error:
            raise RendezvousError(
                f"{name} has its secret in a file of the folder {self._folder}, but {error}. "
                f"{OTHER_MEANS}"
            ) from error


class RenewedOffer(Mapping[str, str]):
    """An offer that is made anew when it is old. Whoever reads it does not wait for that."""

    def __init__(self, make: Callable[[], Dict[str, str]], seconds: float) -> None:
        """Takes what makes the offer, and the seconds after which it does that again."""
        self._make, self._seconds = make, seconds
        self._offer = make()
        self._due = time.monotonic() + seconds

    def _current(self) -> Dict[str, str]:
        now = time.monotonic()
        if now >= self._due:
            self._due = now + self._seconds
            with contextlib.suppress(RuntimeError):  # no thread: the old offer is still good
                threading.Thread(target=self._renew, daemon=True).start()
        return self._offer

    def _renew(self) -> None:
        # If it cannot be made anew, the old one may still be good; whoever cannot use it says so.
        with contextlib.suppress(MungeError, SecretFileError):
            self._offer = self._make()

    def __getitem__(self, key: str) -> str:
        return self._current()[key]

    def __iter__(self) -> Iterator[str]:
        return iter(self._current())

    def __len__(self) -> int:
        return len(self._offer)


def _read_once(source: str, text: object, read: Callable[[str], bytes]) -> bytes:
    """Returns the key to which a text of an offer leads; a process reads it once."""
    text = text if isinstance(text, str) else ""
    if (source, text) not in _keys:
        key = read(text)
        for oldest in list(_keys)[: max(0, len(_keys) + 1 - _KEYS_KEPT)]:
            _keys.pop(oldest, None)
        _keys[source, text] = key
        return key
    return _keys[source, text]
