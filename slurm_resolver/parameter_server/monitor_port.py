"""The port at which a monitor listens."""

from __future__ import annotations

import errno
import os
import time
from typing import Callable

from slurm_resolver.errors import AddressError
from slurm_resolver.parameter_server.channels import ChannelServer
from slurm_resolver.parameter_server.observed_socket import ObservingListener
from slurm_resolver.parameter_server.protocol import MonitorAddress
from slurm_resolver.rendezvous.probe import process_listening_at
from slurm_resolver.rendezvous.secret import own_secret
from slurm_resolver.rendezvous.sockets import allow_open_files, listen_at_port
from slurm_resolver.rendezvous.wire import Limits


def listen(
    address: MonitorAddress, limits: Limits, patience: float, say: Callable[[str], None]
) -> ChannelServer:
    """Returns the server of a monitor, which listens from now on.

    Args:
        address: of the monitor.
        limits: of what the other tasks may send.
        patience: seconds to wait for the port, which a meeting on this node may still use.
        say: is called where the limit on open files does not allow a connection to every node.

    Raises:
        AddressError: where another process uses the port.
    """
    deadline = time.monotonic() + patience
    while True:
        try:
            listener = listen_at_port(address.port, len(address.tasks))
        except OSError as error:
            if error.errno == errno.EADDRINUSE and time.monotonic() < deadline:
                time.sleep(0.1)
                continue
            process = process_listening_at(address.port)
            raise AddressError(
                f"{address.name(address.rank)} cannot listen at port {address.port}: "
                f"{os.strerror(error.errno or 0)}{f', by {process}' if process else ''}. Give "
                "another port_base, or start with srun --resv-ports."
            ) from error
        secret = own_secret(address.identity[0])
        tasks = len(address.tasks)
        observing = ObservingListener(fileno=listener.detach())
        server = ChannelServer(address.meeting, observing, tasks, secret, limits)
        _check_open_files(address, say)
        return server


def _check_open_files(address: MonitorAddress, say: Callable[[str], None]) -> None:
    others = [task.node for task in address.tasks if task.rank != address.rank]
    needed = len(set(others))
    try:
        opened = len(os.listdir("/proc/self/fd"))
    except OSError:  # no /proc
        opened = 0
    limit = allow_open_files(needed + opened)
    allowed = limit - opened
    if allowed < needed:
        say(
            f"{address.name(address.rank)} needs {needed} connections, one to each other "
            f"{'task' if needed == len(others) else 'node'}, and may open {max(allowed, 0)}: "
            f"the limit on open files (ulimit -Hn) is {limit}. Tasks beyond that cannot join. "
            "Raise the limit, as by LimitNOFILE of slurmd, or before sbatch and srun, which "
            "pass it on"
        )
