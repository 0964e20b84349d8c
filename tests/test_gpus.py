"""Which GPUs a task takes."""

from __future__ import annotations

from typing import Any, Dict, Optional, Tuple

import pytest
from hypothesis import given
from hypothesis import strategies as st

from slurm_resolver.environment import SlurmStep
from slurm_resolver.errors import GpuError
from slurm_resolver.gpus import apply_gpus, choose_gpus

Devices = Optional[Tuple[str, ...]]


def choose(
    visible: Optional[str], local_id: int = 0, tasks: int = 1, *explicit: Optional[int], **more: Any
) -> Devices:
    step = SlurmStep(procid=0, visible_devices=visible, **more)
    return choose_gpus(step, local_id, tasks, tasks, *explicit).devices


@pytest.mark.parametrize(
    ("visible", "on_node", "local_id", "tasks", "devices"),
    [
        (None, None, 0, 1, None),
        (None, 2, 0, 2, None),  # 22.05 with --gpu-bind=none
        ("", None, 0, 1, ()),
        ("NoDevFiles", None, 0, 1, ()),
        ("-1", None, 0, 1, ()),
        ("0,-1,1", None, 0, 1, ("0",)),  # CUDA stops at the first that is no device
        ("0", 1, 0, 1, ("0",)),
        ("4,5", 2, 0, 1, ("4", "5")),
        ("4,5", 2, 0, 2, ("4",)),
        ("4,5", 2, 1, 2, ("5",)),
        ("1", 2, 1, 2, ("1",)),  # bound by Slurm
        ("2,3", 4, 1, 2, ("2", "3")),
        ("0,1,2,3,4,5,6", 7, 0, 3, ("0", "1", "2")),
        ("0,1,2,3,4,5,6", 7, 1, 3, ("3", "4")),
        ("0,1,2,3,4,5,6", 7, 2, 3, ("5", "6")),
        ("0", 1, 1, 2, ("0",)),
        ("0,1", 2, 0, 4, ("0",)),
        ("0,1", 2, 3, 4, ("1",)),
        ("GPU-aa,GPU-bb", 2, 1, 2, ("GPU-bb",)),
        ("MIG-aa/1/0,MIG-bb/2/0", None, 0, 2, ("MIG-aa/1/0",)),
    ],
)
def test_what_slurm_granted(
    visible: Optional[str], on_node: Optional[int], local_id: int, tasks: int, devices: Devices
) -> None:
    assert choose(visible, local_id, tasks, gpus_on_node=on_node) == devices


@pytest.mark.parametrize(
    ("visible", "local_id", "tasks", "explicit", "devices"),
    [
        ("", 1, 2, (2, 1), ("1",)),
        (None, 1, 2, (4, 2), ("2", "3")),
        (None, 1, 2, (4, None), ("2", "3")),
        ("4,5", 1, 2, (2, 1), ("5",)),
        ("4,5", 1, 2, (None, 1), ("5",)),
        ("4,5", 0, 2, (2, 0), ()),
        ("1", 1, 2, (2, 1), ("1",)),  # bound by Slurm
    ],
)
def test_explicit_counts_as_tensorflow(
    visible: Optional[str], local_id: int, tasks: int, explicit: Tuple[int, int], devices: Devices
) -> None:
    assert choose(visible, local_id, tasks, *explicit) == devices


@pytest.mark.parametrize(
    ("visible", "explicit", "message"),
    [
        (None, (2, 2), "gpus_per_task=2 and up to 2 tasks on a node need 4 GPUs.*has 2"),
        (None, (None, 1), "the node has 0"),
        ("0,1", (8, 4), "CUDA_VISIBLE_DEVICES=0,1 has 2"),
        (None, (-1, None), "gpus_per_node=-1"),
        (None, (2, "1"), "gpus_per_task='1'"),
    ],
)
def test_explicit_counts_that_do_not_fit(
    visible: Optional[str], explicit: Tuple[Any, Any], message: str
) -> None:
    with pytest.raises(GpuError, match=message):
        choose(visible, 0, 2, *explicit)


@given(st.integers(1, 16), st.integers(1, 20))
def test_a_split_uses_every_device_evenly(number: int, tasks: int) -> None:
    granted = [f"GPU-{i}" for i in range(number)]
    parts = [choose(",".join(granted), i, tasks) or () for i in range(tasks)]
    assert {device for part in parts for device in part} == set(granted)
    sizes = [len(part) for part in parts]
    assert max(sizes) - min(sizes) <= 1
    assert min(sizes) >= 1
    if tasks <= number:
        assert [device for part in parts for device in part] == granted  # disjoint, in order


@pytest.mark.parametrize("explicit", [(), (4, 2)])
def test_a_decision_is_applied_once(explicit: Tuple[int, ...]) -> None:
    environ: Dict[str, str] = {"SLURM_PROCID": "1", "CUDA_VISIBLE_DEVICES": "4,5,6,7"}
    for _ in range(3):  # a second resolver, or a child process
        step = SlurmStep.read(environ)
        gpus = choose_gpus(step, 1, 2, 2, *explicit)
        apply_gpus(gpus, step, environ)
        assert environ["CUDA_VISIBLE_DEVICES"] == "6,7"
        assert gpus.devices == ("6", "7")


def test_the_mark_of_another_task_counts_for_nothing() -> None:
    environ = {"SLURM_PROCID": "0", "CUDA_VISIBLE_DEVICES": "4,5,6,7"}
    step = SlurmStep.read(environ)
    apply_gpus(choose_gpus(step, 0, 2, 2), step, environ)
    environ["SLURM_PROCID"] = "1"  # a step started from that task
    assert choose_gpus(SlurmStep.read(environ), 1, 2, 2).devices == ("5",)


@pytest.mark.parametrize("visible", [None, "", "0", "NoDevFiles"])
def test_nothing_is_written_where_nothing_changes(visible: Optional[str]) -> None:
    environ: Dict[str, str] = {}
    step = SlurmStep(procid=0, visible_devices=visible)
    apply_gpus(choose_gpus(step, 0, 1, 1), step, environ)
    assert environ == {}
