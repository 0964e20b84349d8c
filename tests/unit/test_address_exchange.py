"""When the tasks tell each other the addresses of their nodes; live: tests/slurm/test_names.py."""

from __future__ import annotations

import socket
from typing import Any, Dict, List, Optional

import pytest
from recorded_steps import recordings

import slurm_resolver as sr
from slurm_resolver.cluster import address_exchange
from slurm_resolver.cluster.address_exchange import with_addresses
from slurm_resolver.cluster.layout import layout_from_environment
from slurm_resolver.cluster.options import ClusterOptions, LayoutChoice
from slurm_resolver.slurm.step import SlurmStep

TASKS = next(r for r in recordings() if r.name.endswith("even_2x2")).tasks


def options_of(
    rank: int, options: ClusterOptions, names: List[str], monkeypatch: pytest.MonkeyPatch
) -> ClusterOptions:
    """What becomes of the options in a live task, where only these names resolve."""

    def look_up(name: str, *arguments: Any, **keywords: Any) -> List[Any]:
        if name not in names:
            raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")
        return []

    monkeypatch.setattr(SlurmStep, "is_live", True)
    # The same test may run in another process of this machine at the same time.
    monkeypatch.setattr(address_exchange, "claim_task", lambda _: True)
    monkeypatch.setattr(socket, "getaddrinfo", look_up)
    step = SlurmStep.read(TASKS[rank])
    return with_addresses(step, layout_from_environment(step), options)


@pytest.fixture
def answers(monkeypatch: pytest.MonkeyPatch) -> List[str]:
    """What the tasks are told; they come from here."""
    told = ["10.0.0.1", "10.0.0.2"]

    def meet(point: Any, purpose: str, names: Any, note: Any, decide: Any, timeout: float) -> Any:
        seen: List[Optional[str]] = [None, None, "10.0.0.2", "10.0.0.2"]
        notes = {
            rank: {"came_from": at, "reached_at": at and "10.0.0.1"} for rank, at in enumerate(seen)
        }
        answer = {"addresses": told}
        assert not point.is_host or decide(notes) == answer
        return answer

    monkeypatch.setattr(address_exchange, "meet", meet)
    monkeypatch.delenv("SLURM_RESOLVER_ADDRESSES", raising=False)
    return told


# options; the names that resolve; whether the tasks tell each other addresses
CASES: Dict[str, Any] = {
    "names that resolve": (ClusterOptions(), ["n0", "n1"], False),
    "names that do not": (ClusterOptions(), [], True),
    "asked for": (ClusterOptions(node_address="slurm"), ["n0", "n1"], True),
    "given": (ClusterOptions(node_address="-ib0"), [], False),
    "not to meet": (ClusterOptions(layout="environment"), [], False),
}


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("rank", [0, 2])
def test_when_the_tasks_tell_each_other(
    case: str, rank: int, answers: List[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    options, names, tell = CASES[case]
    found = options_of(rank, options, names, monkeypatch)
    nodes = SlurmStep.read(TASKS[rank]).nodes or ()
    assert found.node_address == (dict(zip(nodes, answers)) if tell else options.node_address)


def test_each_task_asks_for_the_name_of_another_node(
    answers: List[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A node's own name always leads somewhere."""
    first, second = SlurmStep.read(TASKS[0]).nodes or ()
    asked = {0: second, 2: first}
    for rank, name in asked.items():
        assert options_of(rank, ClusterOptions(), [name], monkeypatch).node_address is None
        own = first if rank == 0 else second
        assert options_of(rank, ClusterOptions(), [own], monkeypatch).node_address is not None


@pytest.mark.parametrize("layout", ["environment", "auto"])
def test_they_are_not_to_be_had_without_a_meeting(layout: LayoutChoice) -> None:
    """`layout` forbids it, or no live task stands behind the variables."""
    with pytest.raises(sr.AddressError, match="node_address='slurm': the tasks tell each other"):
        sr.resolve(environ=TASKS[0], node_address="slurm", layout=layout)
