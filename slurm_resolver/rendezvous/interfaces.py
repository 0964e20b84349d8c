"""The network interfaces of this node, as getifaddrs(3) tells them to every program."""

from __future__ import annotations

import contextlib
import ctypes
import ipaddress
import os
import socket
import struct
from typing import Iterator, List, NamedTuple

# <net/if.h>
IFF_LOOPBACK = 0x8
IFF_RUNNING = 0x40


class Interface(NamedTuple):
    """An address of an interface; one that has several is told of several times.

    Attributes:
        name: as `ip link` shows it.
        address: of IPv4 or IPv6, one of a link with its scope, as in ``fe80::1%2``.
        prefix: the bits of it that are the network's.
        running: whether the interface is up and has a carrier.
        loopback: whether it leads to this node itself only.
    """

    name: str
    address: str
    prefix: int = 24
    running: bool = True
    loopback: bool = False


class _Ifaddrs(ctypes.Structure):
    """The start of ``struct ifaddrs``."""


_Ifaddrs._fields_ = [
    ("next", ctypes.POINTER(_Ifaddrs)),
    ("name", ctypes.c_char_p),
    ("flags", ctypes.c_uint),
    ("address", ctypes.c_void_p),
    ("netmask", ctypes.c_void_p),
]


def list_interfaces() -> List[Interface]:
    """Returns the addresses of this node's interfaces in the system's order; [] if it tells none.

    The order counts: a program that takes the first takes the first of these.
    """
    with contextlib.suppress(OSError, AttributeError):
        return list(_interfaces(ctypes.CDLL(None, use_errno=True)))
    return []


def _interfaces(library: ctypes.CDLL) -> Iterator[Interface]:
    first = ctypes.POINTER(_Ifaddrs)()
    if library.getifaddrs(ctypes.byref(first)):
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
    try:
        entry = first
        while entry:
            one = entry.contents
            address = _read_address(one.address)
            if address:
                netmask = _read_address(one.netmask).partition("%")[0]
                yield Interface(
                    os.fsdecode(one.name),
                    address,
                    bin(int(ipaddress.ip_address(netmask))).count("1") if netmask else 0,
                    bool(one.flags & IFF_RUNNING),
                    bool(one.flags & IFF_LOOPBACK),
                )
            entry = one.next
    finally:
        library.freeifaddrs.argtypes = [ctypes.POINTER(_Ifaddrs)]
        library.freeifaddrs(first)


def _read_address(at: int) -> str:
    """Returns the IPv4 or IPv6 address of a ``struct sockaddr``; '' where it has another or none.

    Linux's are two bytes of family and two of port; then IPv4's address, or four bytes of flow,
    IPv6's address and its scope.
    """
    if not at:
        return ""
    (family,) = struct.unpack("=H", ctypes.string_at(at, 2))
    if family == socket.AF_INET:
        return socket.inet_ntop(family, ctypes.string_at(at + 4, 4))
    if family == socket.AF_INET6:
        address = socket.inet_ntop(family, ctypes.string_at(at + 8, 16))
        (scope,) = struct.unpack("=I", ctypes.string_at(at + 24, 4))
        return f"{address}%{scope}" if scope else address
    return ""
