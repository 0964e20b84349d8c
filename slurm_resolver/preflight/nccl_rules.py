"""Which interfaces NCCL takes for its sockets, by its own rules.

Source: ``ncclFindInterfaces`` of NCCL's ``src/misc/socket.cc``, read from 2.16 to 2.30, and of
``bootstrap.cc``: its tasks first meet at an interface each, the first that is found; data then goes
over all that are found, unless InfiniBand carries it. What a task takes it listens at, and the
others connect to that very address.
"""

from __future__ import annotations

import ipaddress
import os
import socket
from importlib import metadata
from pathlib import Path
from typing import Dict, List, NamedTuple, Optional, Sequence, Tuple

from slurm_resolver.rendezvous.interfaces import Interface, list_interfaces

_MAX_INTERFACES = 16
_PACKAGES = ("nvidia-nccl-cu13", "nvidia-nccl-cu12", "nvidia-nccl-cu11")
_VARIABLES = ("SOCKET_IFNAME", "SOCKET_FAMILY", "COMM_ID", "NET", "IB_DISABLE")
_FAMILIES = {"AF_INET": 4, "AF_INET6": 6}
FIRST_NEWER = (2, 28)  # which passes over virbr*, and over interfaces without a carrier


class NcclSettings(NamedTuple):
    """What NCCL's choice depends on, beside the interfaces.

    Attributes:
        variables: the variables that are set, without their ``NCCL_``, as in SOCKET_IFNAME.
        version: of the package that brings NCCL; None where no package does.
        verbs: whether InfiniBand, or what is used like it, can carry the data.
    """

    variables: Dict[str, str]
    version: Optional[Tuple[int, ...]] = None
    verbs: bool = False


def read_nccl_settings() -> NcclSettings:
    """Returns what holds in this process: its variables, or those of NCCL's files."""
    variables = _read_files()
    variables.update((name, value) for name, value in os.environ.items() if name[:5] == "NCCL_")
    known = {name: variables[f"NCCL_{name}"] for name in _VARIABLES if f"NCCL_{name}" in variables}
    verbs = any(Path("/dev/infiniband").glob("uverbs*"))
    return NcclSettings(known, _find_version(), verbs)


def _read_files() -> Dict[str, str]:
    """Returns the variables of the user's file and the system's: the user's come first."""
    user = os.environ.get("NCCL_CONF_FILE") or os.path.expanduser("~/.nccl.conf")
    variables: Dict[str, str] = {}
    for path in ("/etc/nccl.conf", user):
        try:
            lines = Path(path).read_text(errors="replace").splitlines()
        except OSError:
            continue
        pairs = [line.partition("=") for line in lines if "=" in line and line[0] != "#"]
        for name, _, value in reversed(pairs):  # the first in a file is the one that holds
            variables[name] = value
    return variables


def _find_version() -> Optional[Tuple[int, ...]]:
    for package in _PACKAGES:
        try:
            return tuple(int(part) for part in metadata.version(package).split(".")[:3])
        except (metadata.PackageNotFoundError, ValueError):
            continue
    return None


def interfaces_of_nccl(settings: NcclSettings) -> List[Interface]:
    """Returns the interfaces of this node that NCCL takes; [] where it finds none and fails."""
    return choose_interfaces(list_interfaces(), settings)


def choose_interfaces(interfaces: Sequence[Interface], settings: NcclSettings) -> List[Interface]:
    """Returns those of these interfaces that NCCL takes, each with the address it is used by."""
    variables = settings.variables
    found = _found_interfaces(interfaces, settings)
    comm_id = _host_of(variables.get("COMM_ID", ""))
    first = _in_network_of(comm_id, interfaces) if comm_id else found[:1]
    over_sockets = variables.get("NET", "").lower() == "socket"
    if settings.verbs and not over_sockets and variables.get("IB_DISABLE", "0") in ("0", ""):
        return first
    return list(dict.fromkeys([*first, *found]))


def _found_interfaces(interfaces: Sequence[Interface], settings: NcclSettings) -> List[Interface]:
    variables = settings.variables
    newer = (settings.version or (0,)) >= FIRST_NEWER
    family = _FAMILIES.get(variables.get("SOCKET_FAMILY", ""))
    usable = [
        one
        for one in interfaces
        if (one.running or not newer)
        and one.address != "::1"
        and family in (None, 6 if ":" in one.address else 4)
    ]
    asked = variables.get("SOCKET_IFNAME", "")
    if len(asked) > 1:
        return _matching(asked, usable)
    found = _matching("ib", usable)
    comm_id = _host_of(variables.get("COMM_ID", ""))
    if not found and comm_id:
        found = _in_network_of(comm_id, interfaces)
    for wanted in (
        ["^docker,lo,virbr", "docker", "lo", "virbr"] if newer else ["^docker,lo", "docker", "lo"]
    ):
        found = found or _matching(wanted, usable)
    return found


def _matching(wanted: str, interfaces: Sequence[Interface]) -> List[Interface]:
    """Returns the interfaces that a value of NCCL_SOCKET_IFNAME names, each once.

    It is a list of prefixes, or after ``=`` of names; ``^`` before it turns it round.
    """
    without = wanted.startswith("^")
    wanted = wanted[without:]
    exact = wanted.startswith("=")
    names = [name.partition(":")[0] for name in wanted[exact:].split(",")]
    names = [name for name in names if name][:_MAX_INTERFACES]
    found: Dict[str, Interface] = {}
    for one in interfaces:
        named = not names or any(
            one.name == name if exact else one.name.startswith(name) for name in names
        )
        if named != without:
            found.setdefault(one.name, one)
    return list(found.values())[:_MAX_INTERFACES]


def names_chosen(value: str, names: Sequence[str]) -> List[str]:
    """Returns the names that a value of NCCL_SOCKET_IFNAME stands for, among these."""
    return [one.name for one in _matching(value, [Interface(name, "") for name in names])]


def _host_of(comm_id: str) -> str:
    """Returns the address of NCCL_COMM_ID, ``host:port`` or ``[IPv6]:port``; else ''."""
    host = comm_id[1:].partition("]")[0] if comm_id[:1] == "[" else comm_id.partition(":")[0]
    try:
        return str(socket.getaddrinfo(host, None)[0][4][0]) if host else ""
    except OSError:
        return ""


def _in_network_of(address: str, interfaces: Sequence[Interface]) -> List[Interface]:
    """Returns the first interface whose network has an address, as a list of one or none."""
    wanted = ipaddress.ip_address(address.partition("%")[0])
    for one in interfaces:
        own = one.address.partition("%")[0]
        if wanted in ipaddress.ip_network(f"{own}/{one.prefix}", strict=False):
            return [one]
    return []
