"""When the tasks tell each other which GPUs they see; tests/slurm shows it on a real Slurm."""

from __future__ import annotations

import os
from typing import Any, Dict, Optional

import pytest

from slurm_resolver.cluster import closest_gpus
from slurm_resolver.cluster.closest_gpus import tasks_that_see_the_same
from slurm_resolver.cluster.het_groups import ComponentRanks
from slurm_resolver.cluster.layout import Layout
from slurm_resolver.errors import GpuError, RendezvousError
from slurm_resolver.rendezvous.point import Rendezvous
from slurm_resolver.slurm import gpu_identity
from slurm_resolver.slurm.step import SlurmStep

LAYOUT = Layout(("n1", "n2"), [0, 0, 0, 1, 1, 1], [0, 1, 2, 0, 1, 2], "block")
LIVE: Dict[str, Any] = {"task_pid": "1", "rank": 4, "cuda_devices": "2,3"}
CLOSEST: Dict[str, Any] = {**LIVE, "tres_bind": "gres/gpu:closest"}


@pytest.fixture
def meetings(monkeypatch: pytest.MonkeyPatch) -> Any:
    """The notes of this task. The others see 0,1 but rank 1, which is on the other node, and 5."""
    notes = []

    def meet(place: Any, purpose: str, names: Any, note: Any, decide: Any, timeout: float) -> Any:
        notes.append(note)
        seen = ["0,1", "2,3", "0,1", "0,1", note["devices"], "2,3"]
        return decide({rank: {"devices": devices} for rank, devices in enumerate(seen)})

    monkeypatch.setattr(closest_gpus, "meet", meet)
    monkeypatch.setattr(closest_gpus, "_told", {})
    return notes


def place(name: str) -> Rendezvous:
    return Rendezvous("n1", 1, "n1", f"closest {os.getpid()} {name}", 4, False)


@pytest.mark.parametrize(
    ("values", "layout", "may_meet", "alike", "warned"),
    [
        (CLOSEST, LAYOUT, True, [1, 2], False),
        ({**CLOSEST, "tres_bind": "gpu:verbose,closest"}, LAYOUT, True, [1, 2], False),
        ({**LIVE, "tres_bind": "gpu:single:1"}, LAYOUT, True, None, False),
        (LIVE, LAYOUT, True, None, False),
        ({**CLOSEST, "task_pid": None}, LAYOUT, True, None, False),  # the variables of another
        (CLOSEST, LAYOUT._replace(local_rank_of=[0] * 6), True, None, False),  # one a node
        (CLOSEST, LAYOUT, False, None, True),
        (CLOSEST, LAYOUT._replace(components=(ComponentRanks(0, 0, 3),)), True, None, True),
    ],
)
def test_when_they_tell_each_other(
    meetings: Any,
    caplog: pytest.LogCaptureFixture,
    values: Dict[str, Any],
    layout: Layout,
    may_meet: bool,
    alike: Optional[Any],
    warned: bool,
) -> None:
    step = SlurmStep(**values)
    for _ in range(2):
        assert tasks_that_see_the_same(step, layout, place("when"), may_meet) == alike
    assert meetings == ([{"devices": "2,3"}] if alike else [])  # once a process
    assert ("--gpu-bind=per_task:N" in caplog.text) is warned


def test_a_child_process_does_not_ask(meetings: Any) -> None:
    step, where = SlurmStep(**CLOSEST), place("parent")
    assert tasks_that_see_the_same(step, LAYOUT, where, True) == [1, 2]
    pid = os.fork()
    if not pid:
        alike = tasks_that_see_the_same(step, LAYOUT, where, True)
        os._exit(int(alike is not None))
    assert os.waitpid(pid, 0)[1] == 0


def test_tasks_that_do_not_come_are_an_error_with_a_remedy(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def meet(*_: Any) -> Any:
        raise RendezvousError("rank 3 on n2 has not come.")

    monkeypatch.setattr(closest_gpus, "meet", meet)
    with pytest.raises(GpuError, match=r"rank 3 on n2 has not come\. Start with .*per_task:N"):
        tasks_that_see_the_same(SlurmStep(**CLOSEST), LAYOUT, place("missing"), True)


@pytest.mark.parametrize(
    ("devices", "granted", "uuids", "told"),
    [
        ("2,3", 4, None, "2,3"),  # not numbered from 0
        ("0,1", 2, None, "0,1"),  # all of the node's
        ("0,1", 4, None, "0,1 of 4"),
        ("0,1", 4, ("GPU-b", "GPU-a"), "GPU-a,GPU-b"),
        ("0,1", 4, ("GPU-a", "GPU-b", "GPU-c", "GPU-d"), "0,1"),  # not confined
        ("GPU-a", 4, None, "GPU-a"),
    ],
)
def test_what_a_task_tells_is_the_same_for_the_same_gpus(
    meetings: Any,
    monkeypatch: pytest.MonkeyPatch,
    devices: str,
    granted: int,
    uuids: Any,
    told: str,
) -> None:
    monkeypatch.setattr(gpu_identity, "driver_gpu_uuids", lambda: uuids)
    step = SlurmStep(**{**CLOSEST, "cuda_devices": devices, "gpus_on_node": granted})
    tasks_that_see_the_same(step, LAYOUT, place(f"told {devices} {granted} {uuids}"), True)
    assert meetings == [{"devices": told}]


@pytest.mark.parametrize(
    ("seen", "alike"),
    [
        (["0,1 of 4", "0,1 of 4", "2,3"] * 2, [0, 1]),  # not numbered anew: one has other numbers
        (["0,1 of 4"] * 3 + ["0", "1", "2"], None),  # known on this node, and not on the other
        (["0 of 4", "0,1 of 4", "0 of 4"] * 2, None),
        (["0,1,2,3", "0,1 of 4", "0,1 of 4"] * 2, None),  # one of them is near both sockets
        (["GPU-a", "0 of 4", "0 of 4"] * 2, None),  # the driver tells only some of them
        (["GPU-a", "GPU-a", "GPU-b"] * 2, [0, 1]),
    ],
)
def test_numbers_that_may_be_each_tasks_own_are_refused_by_all_tasks_alike(
    monkeypatch: pytest.MonkeyPatch, seen: Any, alike: Any
) -> None:
    notes = {rank: {"devices": devices} for rank, devices in enumerate(seen)}
    monkeypatch.setattr(closest_gpus, "meet", lambda *given: given[4](notes))
    monkeypatch.setattr(closest_gpus, "_told", {})
    step, where = SlurmStep(**CLOSEST), place(str(seen))
    if alike is None:
        with pytest.raises(GpuError, match=r"of 4 GPUs in tasks on n1.*ConstrainDevices"):
            tasks_that_see_the_same(step, LAYOUT, where, True)
    else:
        assert tasks_that_see_the_same(step, LAYOUT, where, True) == alike
