"""Ports that no other test run on this machine uses at the same time.

The ports lie below the kernel's ephemeral range. Each process reserves a block of ports by binding
an abstract socket name. Such names and ports belong to the same network namespace.
"""

from __future__ import annotations

import contextlib
import socket
from collections.abc import Iterator

_FIRST = 12_288
_END = 32_768
_BLOCK = 64
_held: list[socket.socket] = []
_rows_of: dict[int, Iterator[int]] = {}  # by the number of ports per request


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
    """Returns the first of `count` consecutive free ports. No port is returned twice."""
    rows = _rows_of.setdefault(count, _rows(count))
    return next(first for first in rows if _are_free(range(first, first + count)))
