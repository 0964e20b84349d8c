"""The meeting point calls the nodes that do not come: its own name may not resolve there.

The first task of such a node then listens at the port of the meeting point on its own node, and is
called at the address by which Slurm knows the node.
"""

from __future__ import annotations

import threading
import time
from concurrent.futures import ThreadPoolExecutor
from typing import Callable, Mapping, Sequence

from slurm_resolver.errors import RendezvousError
from slurm_resolver.rendezvous.handshake import KeyOf, join
from slurm_resolver.rendezvous.point import Rendezvous
from slurm_resolver.rendezvous.sockets import find_vanished_peers
from slurm_resolver.rendezvous.wire import Connection, Limits, WireError

AddressesOf = Callable[[Sequence[str]], Mapping[str, str]]  # of nodes, by name; raises OSError

CALL_AFTER_SECONDS = 3.0  # by then nodes whose tasks have started have come, where names resolve
_AGAIN_SECONDS = 3.0
_CONNECT_SECONDS = 2.0
_CALLS_AT_A_TIME = 32


class Caller:
    """Calls the other nodes of the step, in a thread, until it is stopped."""

    def __init__(
        self,
        rendezvous: Rendezvous,
        identity: str,
        key_of: KeyOf,
        addresses_of: AddressesOf,
        limits: Limits,
        found: Callable[[Connection], None],
    ) -> None:
        """Takes what to call with each connection, in another thread."""
        self._rendezvous = rendezvous
        self._identity = identity
        self._key_of = key_of
        self._addresses_of = addresses_of
        self._limits = limits
        self._found = found
        self._stopped = threading.Event()

    def start(self) -> None:
        """Begins to call."""
        threading.Thread(target=self._run, name="slurm_resolver caller", daemon=True).start()

    def stop(self) -> None:
        """Ends the calls; a connection that comes of the last ones is closed."""
        self._stopped.set()

    def _run(self) -> None:
        others = [node for node in self._rendezvous.nodes if node != self._rendezvous.own_node]
        try:
            addresses = self._addresses_of(others)  # once: it is a burden to Slurm's controller
        except OSError:
            return  # without Slurm's commands the tasks that are missing are told as ever
        waiting = [addresses[node] for node in others if node in addresses]
        with ThreadPoolExecutor(_CALLS_AT_A_TIME) as pool:
            while waiting and not self._stopped.is_set():
                reached = list(pool.map(self._call, waiting))
                waiting = [host for host, came in zip(waiting, reached) if not came]
                self._stopped.wait(_AGAIN_SECONDS)

    def _call(self, host: str) -> bool:
        if self._stopped.is_set():
            return False
        try:
            address = (host, self._rendezvous.port)
            connection = Connection.open(address, _CONNECT_SECONDS, self._limits)
        except OSError:
            return False
        try:
            find_vanished_peers(connection.socket)
            until = time.monotonic() + 2 * self._limits.handshake_seconds
            join(connection, self._identity, self._key_of, f"the task at {host}", until)
            connection.send({"call": True})
        except (OSError, WireError, RendezvousError):
            connection.close()
            return False
        if self._stopped.is_set():
            connection.close()
        else:
            self._found(connection)
        return True
