"""The local launcher's GPUs and CPUs: the variables and the CPUs of each task."""

from __future__ import annotations

from typing import Dict, List, Optional, Tuple

import pytest

from slurm_resolver.errors import GpuError, LaunchError
from slurm_resolver.local.cpus import bind_cpus
from slurm_resolver.local.gpus import GpuRequest, srun_gpu_variables
from slurm_resolver.local.tres import task_resources
from slurm_resolver.slurm.gpu_variables import CUDA


def gpus(request: GpuRequest, tasks: int, **environ: str) -> List[Optional[str]]:
    found = srun_gpu_variables(request, tasks, environ)
    assert all(
        one.get("CUDA_VISIBLE_DEVICES") == one.get("SLURM_STEP_GPUS", one.get(CUDA))
        for one in found.variables
    )
    return [one.get(CUDA) for one in found.variables]


@pytest.mark.parametrize(
    ("request_", "tasks", "visible", "expected"),
    [
        (GpuRequest(2), 2, "4,5,6", ["4,5", "4,5"]),
        (GpuRequest(per_node=3), 2, "4,5,6", ["4,5,6", "4,5,6"]),
        (GpuRequest(per_task=1), 2, "7,3", ["7", "3"]),
        (GpuRequest(per_task=1), 2, "GPU-aa,MIG-bb", ["GPU-aa", "MIG-bb"]),
        (GpuRequest(2, bind="none"), 2, "4,5", ["4,5", "4,5"]),
        (GpuRequest(4, bind="single:1"), 1, "4,5,6,7", ["4"]),
        (GpuRequest(2, bind="single:2"), 6, "4,5", ["4", "4", "5", "5", "4", "5"]),
        (GpuRequest(0), 2, "4,5", ["", ""]),
        (GpuRequest(), 2, "4,5", [None, None]),  # none asked for: the launcher's variables stay
    ],
)
def test_tasks_get_the_first_of_the_launchers_gpus(
    request_: GpuRequest, tasks: int, visible: str, expected: List[Optional[str]]
) -> None:
    assert gpus(request_, tasks, CUDA_VISIBLE_DEVICES=visible) == expected


def test_uuids_go_only_into_the_variable_of_their_maker() -> None:
    found = srun_gpu_variables(GpuRequest(1), 1, {CUDA: "GPU-aa"})
    assert found.variables == [
        {CUDA: "GPU-aa", "SLURM_STEP_GPUS": "GPU-aa", "SLURM_GPUS_ON_NODE": "1"}
    ]
    assert {"ROCR_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES"} <= set(found.removed)


@pytest.mark.parametrize(
    ("request_", "environ", "message"),
    [
        (
            GpuRequest(3),
            {CUDA: "0,1"},
            "3 GPUs are asked for, but CUDA_VISIBLE_DEVICES=0,1 names 2",
        ),
        (GpuRequest(per_task=2), {CUDA: "0,1"}, "4 GPUs are asked for"),
        (GpuRequest(1), {CUDA: ""}, "1 GPUs are asked for, but CUDA_VISIBLE_DEVICES= names 0"),
        (GpuRequest(3, per_task=1), {}, "--gpus makes 3, --gpus-per-task makes 2 GPUs for 2 tasks"),
        (
            GpuRequest(2, per_node=1),
            {},
            "expected the same number. Give only one of these options.",
        ),
        (GpuRequest(5), {}, "5 GPUs are asked for, but the driver shows 4."),
    ],
)
def test_more_gpus_than_there_are(
    request_: GpuRequest, environ: Dict[str, str], message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("slurm_resolver.local.gpus.count_driver_gpus", lambda: 4)
    with pytest.raises(GpuError) as caught:
        srun_gpu_variables(request_, 2, environ)
    assert message in str(caught.value)


def test_an_unknown_number_of_gpus_is_a_warning(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("slurm_resolver.local.gpus.count_driver_gpus", lambda: None)
    found = srun_gpu_variables(GpuRequest(2), 1, {})
    assert found.variables[0][CUDA] == "0,1"
    assert [text.split(" (")[0] for text in found.warnings] == [
        "cannot see whether this machine has 2 GPUs"
    ]
    monkeypatch.setattr("slurm_resolver.local.gpus.count_driver_gpus", lambda: 2)
    assert not srun_gpu_variables(GpuRequest(2), 1, {}).warnings


def test_a_binding_that_leaves_a_task_without_gpu_is_a_warning() -> None:
    found = srun_gpu_variables(GpuRequest(2, bind="per_task:1"), 3, {CUDA: "4,5"})
    assert [one[CUDA] for one in found.variables] == ["4", "5", "4"]
    [warning] = found.warnings
    assert warning.startswith("--gpu-bind per_task:1 leaves task 2 none of the step's 2 GPUs;")
    found = srun_gpu_variables(GpuRequest(2, bind="per_task:2"), 1, {CUDA: "4,5"})
    assert (found.variables[0][CUDA], found.warnings) == ("4,5", [])


CORES = {0: (0, 4), 1: (1, 5), 4: (0, 4), 5: (1, 5), 6: (6,)}


@pytest.mark.parametrize(
    ("option", "tasks", "each", "expected", "shown"),
    [
        (None, 2, None, None, None),
        (None, 2, 2, [(0, 1), (4, 5)], "quiet,mask_cpu:0x3,0x30"),
        (None, 3, 2, None, None),  # not enough
        ("none", 2, 2, None, "quiet,none"),
        ("rank", 2, None, [(0,), (1,)], "quiet,mask_cpu:0x1,0x2"),  # the word is ignored
        ("rank", 5, None, None, None),  # not enough
        ("Verbose", 2, None, [(0,), (1,)], "verbose,mask_cpu:0x1,0x2"),
        ("one_thread,v", 2, None, [(0,), (1,)], "verbose,mask_cpu:0x1,0x2"),
        ("threads", 3, None, [(0,), (1,), (4,)], "quiet,mask_cpu:0x1,0x2,0x10"),
        ("v,threads", 1, 2, [(0, 1)], "verbose,mask_cpu:0x3"),
        ("cores", 2, None, [(0, 4), (1, 5)], "quiet,mask_cpu:0x11,0x22"),
        ("cores", 2, 2, [(0, 4), (1, 5)], "quiet,mask_cpu:0x11,0x22"),
        ("cores", 1, 3, [(0, 4, 1, 5)], "quiet,mask_cpu:0x33"),
    ],
)
def test_cpu_binding(
    option: Optional[str],
    tasks: int,
    each: Optional[int],
    expected: Optional[List[Tuple[int, ...]]],
    shown: Optional[str],
) -> None:
    bound = bind_cpus(option, tasks, each, [0, 1, 4, 5], CORES.__getitem__)
    assert bound.cpus == expected
    assert bound.variables.get("SLURM_CPU_BIND") == shown


@pytest.mark.parametrize(
    ("tres_per_task", "cpus", "gpus", "expected"),
    [
        (None, None, None, (None, None, None)),
        (None, 2, None, (2, None, "cpu=2")),
        (None, 2, "a100:1", (2, 1, "cpu=2,gres/gpu:a100=1")),
        (None, None, "0", (None, 0, None)),
        ("gres/gpu:1", None, None, (None, 1, "gres/gpu:1")),
        ("gres/gpu=1", None, None, (None, 1, "gres/gpu=1")),
        ("gres:gpu:a100:2", None, None, (None, 2, "gres/gpu:a100:2")),
        ("gres/gpu:a100", 3, None, (3, 1, "cpu=3,gres/gpu:a100")),
        ("cpu=2,gres/gpu:a100=1", None, None, (2, 1, "cpu=2,gres/gpu:a100=1")),
        ("cpu:2", None, "4", (2, 4, "gres/gpu=4,cpu:2")),
    ],
)
def test_what_each_task_gets(
    tres_per_task: Optional[str],
    cpus: Optional[int],
    gpus: Optional[str],
    expected: Tuple[Optional[int], Optional[int], Optional[str]],
) -> None:
    assert task_resources(tres_per_task, cpus, gpus) == expected


@pytest.mark.parametrize(
    ("tres_per_task", "cpus", "gpus", "message"),
    [
        ("", None, None, "--tres-per-task '': expected cpu=N and gres/gpu=N"),
        ("gpu=1", None, None, "--tres-per-task 'gpu=1': expected"),
        ("cpu=2,license/x=1", None, None, "What else Slurm counts cannot be simulated here"),
        ("gres/gpu=1,gres/gpu=1", None, None, "expected gres/gpu once, with a number from 0"),
        ("cpu=5000", None, None, "expected cpu once, with a number from 1 to 4096"),
        ("cpu=2", 2, None, "--tres-per-task 'cpu=2' and --cpus-per-task both say cpu"),
        ("gres/gpu", None, "1", "and --gpus-per-task both say gres/gpu: expected one of them"),
    ],
)
def test_what_no_task_can_get(
    tres_per_task: str, cpus: Optional[int], gpus: Optional[str], message: str
) -> None:
    with pytest.raises(LaunchError) as caught:
        task_resources(tres_per_task, cpus, gpus)
    assert message in str(caught.value)
