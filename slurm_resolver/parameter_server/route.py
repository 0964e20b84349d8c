"""How a task reaches the monitor: through the relay of its node, or by a connection of its own.

A task that is alone on its node needs no relay. The others look for one, and the first that finds
none becomes it; whoever does not find it soon, or waits too long for it, goes by itself.
"""

from __future__ import annotations

import contextlib
import time
from typing import Callable, Optional

from slurm_resolver.parameter_server.observed_socket import ObservedSocket, connect
from slurm_resolver.parameter_server.protocol import JOBS, MonitorAddress
from slurm_resolver.parameter_server.relay import Relay
from slurm_resolver.parameter_server.relayed_socket import RelayedSocket, connect_to_relay
from slurm_resolver.rendezvous.handshake import join
from slurm_resolver.rendezvous.secret import key_of_offer
from slurm_resolver.rendezvous.sockets import find_vanished_peers, node_name
from slurm_resolver.rendezvous.wire import Connection

CONNECT_SECONDS = 3.0
_FIND_SECONDS = 3.0  # for a task that is about to relay to listen
_FIND_PAUSE = 0.02
_LONGEST_INTERVAL = 1.0  # in which a relay tells that it is there
_WORDS = 5  # at least, that have to lack until it counts as stopped


class Route:
    """The ways from this task to the monitor of its job.

    Attributes:
        host_and_port: where the monitor listens, as far as is known.
    """

    def __init__(self, address: MonitorAddress) -> None:
        self._address = address
        self.host_and_port = (address.host, address.port)
        node = address.tasks[address.rank].node
        self._tasks = sum(
            task.node == node and task.job in JOBS and task.rank != address.monitor_rank
            for task in address.tasks
        )
        self._name = node_name("monitor", *address.identity, *self.host_and_port, node)
        # A quarter of the grace leaves time enough to come again.
        self._silence = address.grace / 4
        self._relay: Optional[Relay] = None
        self._avoids_relay = False

    def open(self, may_wait: Callable[[], bool]) -> ObservedSocket:
        """Returns a new connection; raises OSError where there is none.

        A process that may not wait, as it is about to end, goes by itself, and relays for nobody.
        """
        if may_wait() and self._tasks > 1 and not self._avoids_relay:
            with contextlib.suppress(OSError, ValueError):
                sock = self._through_relay(may_wait)
                self._avoids_relay = True  # the next time, unless `remember` is called before
                return sock
        self._avoids_relay = False
        direct = connect(self.host_and_port, CONNECT_SECONDS)
        with contextlib.suppress(OSError):  # it may have ended already
            find_vanished_peers(direct)
        return direct

    def avoid_relay(self) -> None:
        """Has the next connection go to the monitor by itself."""
        self._avoids_relay = True

    def remember(self, sock: ObservedSocket, grace: float) -> None:
        """Keeps what is needed to come again, of a connection over which the monitor answers."""
        self._avoids_relay = False
        if isinstance(sock, RelayedSocket):
            self.host_and_port = sock.monitor or self.host_and_port
            return
        # In the other half of the grace it connects again, as the network may have forgotten it.
        find_vanished_peers(sock, grace / 2)
        peer = sock.getpeername()
        if len(peer) == 2 or not peer[3]:  # not an address that is one only with its interface
            self.host_and_port = (peer[0], peer[1])  # no name has to be looked up in a gap

    def end(self, seconds: float) -> None:
        """Lets the other tasks of the node end first, for that long at most, if this one relays."""
        if self._relay is not None:
            self._relay.await_others(seconds)

    def close_in_child(self) -> None:
        """Closes a forked process's copies of the relay's sockets."""
        if self._relay is not None:
            self._relay.close_in_child()

    def _through_relay(self, may_wait: Callable[[], bool]) -> RelayedSocket:
        until = time.monotonic() + min(_FIND_SECONDS, self._silence)
        while True:
            try:
                return connect_to_relay(self._name, self._silence, may_wait)
            except ConnectionError:  # nobody listens, or no longer
                if time.monotonic() >= until:
                    raise
            interval = min(_LONGEST_INTERVAL, self._silence / _WORDS)
            relay = Relay.start(self._name, self._connect_relay, interval, self._tasks)
            if relay is not None:
                self._relay = relay
            else:  # another one is about to
                time.sleep(_FIND_PAUSE)

    def _connect_relay(self) -> Connection:
        """Opens the connection for all tasks of the node."""
        address = self._address
        connection = Connection.greet(connect(self.host_and_port, CONNECT_SECONDS))
        try:
            find_vanished_peers(connection.socket, address.grace / 2)
            name, until = address.name(address.monitor_rank), time.monotonic() + CONNECT_SECONDS
            join(connection, address.meeting, key_of_offer, name, until)
            connection.send({"relay": True})
        except BaseException:
            connection.close()
            raise
        return connection
