"""Which interfaces NCCL takes, what is said of its choice, and which nodes count as slow."""

from __future__ import annotations

from pathlib import Path
from typing import Dict, List, Optional, Tuple

import pytest

from slurm_resolver.preflight.nccl_check import NcclChoice, find_wrong_choices
from slurm_resolver.preflight.nccl_rules import (
    NcclSettings,
    choose_interfaces,
    read_nccl_settings,
)
from slurm_resolver.preflight.speed_check import Link, find_slow_nodes
from slurm_resolver.rendezvous.interfaces import Interface, list_interfaces

LO = Interface("lo", "127.0.0.1", 8, loopback=True)
LO6 = Interface("lo", "::1", 128, loopback=True)
ETH0 = Interface("eth0", "10.0.0.8", 16)
ETH0_6 = Interface("eth0", "fe80::8%2", 64)
ETH1 = Interface("eth1", "10.1.0.8", 16)
IB0 = Interface("ib0", "10.2.0.8", 16)
DOCKER = Interface("docker0", "172.17.0.1", 16)
NO_CARRIER = Interface("br-7f00", "172.18.0.1", 16, running=False)
VIRBR = Interface("virbr0", "192.168.122.1", 24)
VETH = Interface("veth7", "fe80::7%7", 64)
NODE = [LO, ETH0, DOCKER, VIRBR, LO6, ETH0_6, VETH]
OLDER, NEWER = (2, 27, 7), (2, 28, 3)


@pytest.mark.parametrize(
    ("interfaces", "variables", "version", "taken"),
    [
        ([LO, ETH0, LO6, ETH0_6], {}, OLDER, "eth0"),
        (NODE, {}, OLDER, "eth0 virbr0 veth7"),
        (NODE, {}, NEWER, "eth0 veth7"),
        (NODE, {}, None, "eth0 virbr0 veth7"),  # the older's rules where it is not known
        ([LO, ETH0, NO_CARRIER], {}, OLDER, "eth0 br-7f00"),
        ([LO, ETH0, NO_CARRIER], {}, NEWER, "eth0"),
        ([LO, ETH0, IB0, ETH1], {}, OLDER, "ib0"),
        ([LO, DOCKER], {}, OLDER, "docker0"),
        ([LO, LO6], {}, OLDER, "lo"),
        ([LO, VIRBR], {}, NEWER, "lo"),
        ([VIRBR], {}, NEWER, "virbr0"),
        ([], {}, NEWER, ""),
        (NODE, {"SOCKET_IFNAME": "eth"}, NEWER, "eth0"),
        (NODE, {"SOCKET_IFNAME": "=eth"}, NEWER, ""),
        (NODE, {"SOCKET_IFNAME": "=docker0,virbr0"}, NEWER, "docker0 virbr0"),
        (NODE, {"SOCKET_IFNAME": "^veth,lo,vir"}, NEWER, "eth0 docker0"),
        (NODE, {"SOCKET_IFNAME": "^=veth7,lo"}, NEWER, "eth0 docker0 virbr0"),
        (NODE, {"SOCKET_IFNAME": "e"}, NEWER, "eth0 veth7"),  # one character counts as not set
        ([LO, ETH0, IB0], {"SOCKET_IFNAME": "eth0:1,ib0"}, NEWER, "eth0 ib0"),
        (NODE, {"SOCKET_FAMILY": "AF_INET"}, NEWER, "eth0"),
        (NODE, {"SOCKET_FAMILY": "AF_INET6"}, NEWER, "eth0 veth7"),
        ([LO, ETH0, ETH1], {"COMM_ID": "10.1.3.3:5000"}, NEWER, "eth1"),
        ([LO, ETH0, IB0], {"COMM_ID": "10.0.3.3:5000"}, NEWER, "eth0 ib0"),
        ([LO, ETH0_6, VETH], {"COMM_ID": "[fe80::9]:5000"}, NEWER, "eth0"),
        ([LO, ETH0], {"COMM_ID": "10.9.3.3:5000"}, NEWER, "eth0"),
    ],
)
def test_what_nccl_takes(
    interfaces: List[Interface],
    variables: Dict[str, str],
    version: Optional[Tuple[int, ...]],
    taken: str,
) -> None:
    settings = NcclSettings(variables, version)
    assert [one.name for one in choose_interfaces(interfaces, settings)] == taken.split()


@pytest.mark.parametrize(
    ("variables", "taken"),
    [
        ({}, "eth0"),
        ({"NET": "Socket"}, "eth0 veth7"),
        ({"NET": "IB"}, "eth0"),
        ({"IB_DISABLE": "1"}, "eth0 veth7"),
        ({"IB_DISABLE": "0"}, "eth0"),
    ],
)
def test_with_infiniband_only_the_first_meeting_is_over_sockets(
    variables: Dict[str, str], taken: str
) -> None:
    settings = NcclSettings(variables, NEWER, verbs=True)
    assert [one.name for one in choose_interfaces(NODE, settings)] == taken.split()


def test_it_has_an_address_of_each_family_by_which_it_is_used() -> None:
    assert choose_interfaces([LO, ETH0, ETH0_6], NcclSettings({}, NEWER)) == [ETH0]
    only_6 = NcclSettings({"SOCKET_FAMILY": "AF_INET6"}, NEWER)
    assert choose_interfaces([LO, ETH0, ETH0_6], only_6) == [ETH0_6]


def test_settings_stand_in_files_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / ".nccl.conf").write_text(
        "# NCCL_NET=IB\nNCCL_SOCKET_IFNAME==eth0,eth1\nNCCL_SOCKET_IFNAME=ib\nNCCL_NET=Socket\n"
    )
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.delenv("NCCL_CONF_FILE", raising=False)
    monkeypatch.delenv("NCCL_SOCKET_IFNAME", raising=False)
    monkeypatch.setenv("NCCL_NET", "IB")
    assert read_nccl_settings().variables == {"SOCKET_IFNAME": "=eth0,eth1", "NET": "IB"}
    (tmp_path / "other").write_text("NCCL_SOCKET_FAMILY=AF_INET")
    monkeypatch.setenv("NCCL_CONF_FILE", str(tmp_path / "other"))
    assert read_nccl_settings().variables == {"SOCKET_FAMILY": "AF_INET", "NET": "IB"}


@pytest.mark.parametrize(
    ("found", "expected"),
    [("2.27.7", (2, 27, 7)), ("2.28.3.1", (2, 28, 3)), ("2.x", None), (None, None)],
)
def test_the_version_is_that_of_the_package(
    found: Optional[str],
    expected: Optional[Tuple[int, ...]],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    if found is not None:
        folder = tmp_path / f"nvidia_nccl_cu12-{found}.dist-info"
        folder.mkdir()
        (folder / "METADATA").write_text(f"Name: nvidia-nccl-cu12\nVersion: {found}\n")
    monkeypatch.setattr("sys.path", [str(tmp_path)])
    assert read_nccl_settings().version == expected


def test_this_machines_interfaces() -> None:
    found = list_interfaces()
    loopback = next(one for one in found if one.address == "127.0.0.1")
    assert loopback == ("lo", "127.0.0.1", 8, True, True)


GOOD = NcclChoice(["lo", "eth0"], ["eth0"], {}, ["eth0"])
BRIDGE = NcclChoice(["lo", "eth0", "br0"], ["eth0", "br0"], {"br0": "n2 says no"}, ["eth0"])
OTHER = NcclChoice(["lo", "enp1s0"], ["enp1s0"], {}, ["enp1s0"])
LINE = "before srun: export NCCL_SOCKET_IFNAME="


@pytest.mark.parametrize(
    ("choices", "told"),
    [
        ({}, []),
        ({"n1": GOOD, "n2": GOOD}, []),
        ({"n1": GOOD, "n2": OTHER}, []),
        (
            {"n1": BRIDGE, "n2": GOOD, "n3": BRIDGE},
            [
                "NCCL takes br0 on n[1,3], which does not lead to the other nodes (n2 says no)",
                f"{LINE}=eth0",
            ],
        ),
        (  # nodes that name it differently
            {"n1": BRIDGE, "n2": OTHER},
            [
                "NCCL takes br0 on n1, which does not lead to the other nodes (n2 says no)",
                f"{LINE}=eth0,enp1s0",
            ],
        ),
        (  # one has an interface of the name that is right on another
            {"n1": BRIDGE, "n2": OTHER._replace(names=["lo", "enp1s0", "eth0"])},
            [
                "NCCL takes br0 on n1, which does not lead to the other nodes (n2 says no)",
                (
                    "no value is right on every node: set it in each task's environment or in the "
                    "nodes' /etc/nccl.conf, NCCL_SOCKET_IFNAME==eth0 on n1, "
                    "NCCL_SOCKET_IFNAME==enp1s0 on n2"
                ),
            ],
        ),
        (
            {"n1": BRIDGE._replace(older=["br0"]), "n2": GOOD},
            [
                (
                    "NCCL before 2.28 takes br0 on n1, which does not lead to the other nodes "
                    "(n2 says no)"
                ),
                f"{LINE}=eth0",
            ],
        ),
        (
            {"n1": GOOD._replace(taken=[], asked_for="ib"), "n2": GOOD},
            ["NCCL finds no interface on n1 by NCCL_SOCKET_IFNAME=ib, and fails", f"{LINE}=eth0"],
        ),
        (
            {"n1": BRIDGE._replace(asked_for="br", unreached={"br0": "no", "br1": "no"})},
            [
                (
                    "NCCL takes br0 and br1 on n1 by NCCL_SOCKET_IFNAME=br, which do not lead "
                    "to the other nodes (no)"
                ),
                f"{LINE}=eth0",
            ],
        ),
        (
            {"n1": NcclChoice(["br0"], ["br0"], {"br0": "no"}, [])},
            [
                "NCCL takes br0 on n1, which does not lead to the other nodes (no)",
                "no interface of n1 is known to lead to the others",
            ],
        ),
    ],
)
def test_what_is_said_of_its_choice(choices: Dict[str, NcclChoice], told: List[str]) -> None:
    assert find_wrong_choices(choices) == told


FAST, SLOW = Link(1e9, 3e-4), Link(1.2e6, 3e-4)
LATE = Link(1e9, 4e-2)


def ring(nodes: str, **different: Link) -> Dict[Tuple[str, str], Link]:
    """Each node's links to the next two; `ab` is another one from a to b, `a_` and `_a` all."""
    links = {}
    for i, a in enumerate(nodes):
        for b in (nodes[(i + 1) % len(nodes)], nodes[(i + 2) % len(nodes)]):
            if a != b:
                own = [different[key] for key in (a + b, f"{a}_", f"_{b}") if key in different]
                links[a, b] = own[0] if own else FAST
    return links


@pytest.mark.parametrize(
    ("links", "slow"),
    [
        (ring("ab"), ""),
        (ring("abc"), ""),
        (ring("abcde"), ""),
        (ring("abc", c_=SLOW, _c=SLOW), "c"),
        (ring("abcde", c_=SLOW, _c=SLOW), "c"),
        (ring("abcde", c_=SLOW), "c"),
        (ring("abcde", _c=SLOW), "c"),
        (ring("abcde", c_=LATE, _c=LATE), "c"),
        (ring("abcdef", b_=SLOW, _b=SLOW, e_=SLOW, _e=SLOW), "b e"),
        (ring("abcdef", b_=SLOW, _b=SLOW, c_=SLOW, _c=SLOW), "b c"),
        (ring("abcde", ab=SLOW), ""),  # a moment, or the one cable between them
        (ring("abcde", c_=Link(3e8, 3e-4), _c=Link(3e8, 2e-3)), ""),
        (ring("abcde", c_=Link(0.0, 3e-4), _c=FAST), "c"),
        (ring("ab", ab=SLOW), "a"),
        (ring("ab", ab=SLOW, ba=SLOW), ""),  # nothing to compare it with
        ({("a", "b"): FAST}, ""),
    ],
)
def test_slow_nodes(links: Dict[Tuple[str, str], Link], slow: str) -> None:
    assert list(find_slow_nodes(links)) == slow.split()


def test_what_is_said_of_a_slow_node() -> None:
    assert find_slow_nodes(ring("abcde", c_=SLOW, _c=SLOW._replace(trip=4e-2))) == {
        "c": "sends 1.2 MB/s (median 1000 MB/s), receives 1.2 MB/s (median 1000 MB/s)"
    }
    assert find_slow_nodes(ring("abcde", c_=LATE, _c=LATE)) == {
        "c": "answers in 40.0 ms (median 0.3 ms)"
    }
    assert find_slow_nodes(ring("abc", c_=Link(0.0, 3e-4))) == {
        "c": "sends under 0.3 MB/s (median 1000 MB/s)"
    }
    assert find_slow_nodes(ring("ab", ab=SLOW)) == {"a": "sends 1.2 MB/s (the other way 1000 MB/s)"}
