"""Ports of this machine that no other run of the tests uses: several run side by side.

They lie below those that the kernel hands out to connections. Each process takes blocks of them,
and holds the name of its blocks as long as it lives; names and ports are those of one network.
"""

from __future__ import annotations

import contextlib
import socket
from typing import Dict, Iterator, List

_FIRST, _END, _BLOCK = 12_288, 32_768, 64
_held: List[socket.socket] = []
_rows_of: Dict[int, Iterator[int]] = {}  # by how many are asked for at a time


def _blocks() -> Iterator[range]:
    for first in range(_FIRST, _END, _BLOCK):
        name = socket.socket(socket.AF_UNIX)
        try:
            name.bind(f"\0slurm_resolver.tests.ports.{first}")
        except OSError:
            name.close()
            continue
        _held.append(name)
        yield range(first, first + _BLOCK)


def _rows(count: int) -> Iterator[int]:
    for block in _blocks():
        yield from block[: _BLOCK - _BLOCK % count : count]


def _are_free(ports: range) -> bool:
    with contextlib.ExitStack() as stack, contextlib.suppress(OSError):
        for port in ports:
            stack.enter_context(socket.create_server(("", port)))
        return True
    return False


def free_ports(count: int) -> int:
    """Returns the first of so many ports in a row; no port is given out twice."""
    rows = _rows_of.setdefault(count, _rows(count))
    return next(first for first in rows if _are_free(range(first, first + count)))


def free_port() -> int:
    """Returns a port; none is given out twice."""
    return free_ports(1)
