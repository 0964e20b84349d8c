"""The addresses of this node, the likeliest first, for others that cannot find it by its name."""

from __future__ import annotations

import contextlib
import ipaddress
import socket
from typing import List, Sequence

from slurm_resolver.rendezvous.interfaces import list_interfaces

# Addresses for documentation (RFC 5737, RFC 3849): the way to them is the way to anywhere.
_ANYWHERE = ("192.0.2.1", "2001:db8::1")
_MOST = 16


def own_addresses(reached_by: Sequence[str] = ()) -> List[str]:
    """Returns at most 16 addresses of this node that others may reach, without any of loopback.

    First those from which it would send to `reached_by`, addresses of hosts that are known to reach
    it; then those of its default routes, then all others. Nothing is sent.
    """
    running = [one for one in list_interfaces() if one.running and not one.loopback]
    running.sort(key=lambda one: ":" in one.address)  # of IPv4 first, as more hosts have it
    found = [*map(_source, (*reached_by, *_ANYWHERE)), *(one.address for one in running)]
    return [address for address in dict.fromkeys(found) if _is_usable(address)][:_MOST]


def _is_usable(address: str) -> bool:
    try:
        parsed = ipaddress.ip_address(address)
    except ValueError:
        return False
    return not (parsed.is_loopback or parsed.is_link_local or parsed.is_unspecified)


def _source(host: str) -> str:
    """Returns the address from which this node would send to one; "" where it has no way there."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with contextlib.suppress(OSError), socket.socket(family, socket.SOCK_DGRAM) as sock:
        sock.connect((host, 9))  # of UDP: it only looks for the way
        return str(sock.getsockname()[0])
    return ""
