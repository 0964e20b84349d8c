"""What a task can use of MIG slices, and what it sets where it shares its GPU with another."""

from __future__ import annotations

from typing import Any, Dict, List, Sequence, Tuple

import pytest

from slurm_resolver.cluster.gpu_plan import NodeGpuPlan
from slurm_resolver.cluster.gpus import choose_gpus
from slurm_resolver.cluster.task_gpus import TaskGpus, apply_gpus
from slurm_resolver.slurm.step import SlurmStep

Shown = Tuple[str, ...]


def choose(visible: str, local_rank: int, tasks: int, **more: Any) -> TaskGpus:
    users = more.pop("users", range(tasks))
    step = SlurmStep(rank=local_rank, cuda_devices=visible, **more)
    return choose_gpus(step, local_rank, users, tasks)


# By what the tasks of a node are shown, and which of them use GPUs: what each takes, and how many
# slices it has.
FOUR = "MIG-a,MIG-b,MIG-c,MIG-d"
SLICES: Dict[str, Tuple[str, Dict[str, Any], List[Shown], List[int]]] = {
    "one each": ("MIG-a,MIG-b", {}, [("MIG-a",), ("MIG-b",)], [0, 0]),
    "as older drivers name them": (
        "MIG-GPU-5a/1/0,MIG-GPU-5a/2/0",
        {},
        [("MIG-GPU-5a/1/0",), ("MIG-GPU-5a/2/0",)],
        [0, 0],
    ),
    "two each": (FOUR, {}, [("MIG-a",), ("MIG-c",)], [2, 2]),
    "four for one task": (FOUR, {}, [("MIG-a",)], [4]),
    "bound by Slurm": (
        "MIG-a,MIG-b",
        {"gpus_on_node": 4, "tres_bind": "gres/gpu:per_task:2"},
        [("MIG-a",), ("MIG-a",)],
        [2, 2],
    ),
    "one for two tasks": ("MIG-a", {}, [("MIG-a",), ("MIG-a",)], [0, 0]),
    "a job without GPUs": (FOUR, {"users": [1]}, [(), ("MIG-a",)], [0, 4]),
    "beside whole GPUs": ("GPU-1,MIG-a,GPU-2", {}, [("GPU-1", "GPU-2")], [3]),
    "whole GPUs": ("GPU-1,GPU-2", {}, [("GPU-1", "GPU-2")], [0]),
}


@pytest.mark.parametrize("name", SLICES)
def test_a_process_uses_one_slice(name: str, caplog: pytest.LogCaptureFixture) -> None:
    visible, more, taken, slices = SLICES[name]
    gpus = [choose(visible, rank, len(taken), **more) for rank in range(len(taken))]
    assert [one.devices for one in gpus] == taken
    assert [one.slices for one in gpus] == slices
    assert ("several MIG slices each" in caplog.text) == any(slices)
    for one in gpus:
        environ = {"CUDA_VISIBLE_DEVICES": visible}
        apply_gpus(one, SlurmStep(rank=0), environ)
        assert environ["CUDA_VISIBLE_DEVICES"] == ",".join(one.devices or ())


def test_every_task_knows_the_slices_of_the_others_of_its_node() -> None:
    plans = []
    for rank in range(2):
        step = SlurmStep(rank=rank, cuda_devices=FOUR)
        counts = (2, None, None)
        own = choose_gpus(step, rank, range(2), *counts)
        plan = NodeGpuPlan(step, own, range(2), range(2), counts).by_rank()
        plans.append({rank: gpus.devices for rank, gpus in plan.items()})
    assert plans[0] == plans[1] == {0: ("MIG-a",), 1: ("MIG-c",)}


def test_without_the_settings_cuda_shows_the_first_slice() -> None:
    assert choose(FOUR, 1, 2).visible_devices(applied=False) == ("MIG-a",)
    assert choose("GPU-1,MIG-a", 0, 1).visible_devices(applied=False) == ("MIG-a",)
    assert choose("GPU-1,GPU-2", 1, 2).visible_devices(applied=False) == ("GPU-1", "GPU-2")


# By what the tasks of a node are shown: which of them share their GPU.
MEMORY: Dict[str, Tuple[str, Sequence[bool], Dict[str, Any]]] = {
    "one each": ("0,1", [False, False], {}),
    "two each": ("0,1,2,3", [False, False], {}),
    "two on one": ("0", [True, True], {}),
    "three on two": ("0,1", [True, True, False], {}),
    "one of two uses it": ("0", [False, False], {"users": [1]}),
    "two a GPU, bound": ("1", [True, True, True, True], {"tres_bind": "gpu:single:2"}),
    "two a GPU, and one of them uses it": (
        "1",
        [False, False],
        {"tres_bind": "gpu:single:2", "users": [0]},
    ),
    "one each, bound": ("1", [False, False], {"tres_bind": "gres/gpu:single:1"}),
    "the user wants all of the memory": ("0", [False, False], {"allow_growth": "false"}),
    "the user wants growth": ("0", [False, False], {"allow_growth": "true"}),
    "an allocator that grows": ("0", [False, False], {"gpu_allocator": "cuda_malloc_async"}),
    "shards, as Slurm shares a GPU among jobs": ("0", [True], {"shards_on_node": "2"}),
    "shards, and the user's choice": (
        "0",
        [False],
        {"shards_on_node": "2", "allow_growth": "false"},
    ),
    "another allocator": ("0", [True, True], {"gpu_allocator": "BFC"}),
}


@pytest.mark.parametrize("name", MEMORY)
def test_tasks_that_share_a_gpu_take_the_memory_that_they_need(
    name: str, caplog: pytest.LogCaptureFixture
) -> None:
    visible, shares, more = MEMORY[name]
    for rank, growth in enumerate(shares):
        gpus = choose(visible, rank, len(shares), **more)
        environ: Dict[str, str] = {}
        apply_gpus(gpus, SlurmStep(rank=rank), environ)
        assert environ.get("TF_FORCE_GPU_ALLOW_GROWTH") == ("true" if growth else None), rank
    assert ("TF_FORCE_GPU_ALLOW_GROWTH=true is set, as" in caplog.text) == any(shares)


@pytest.mark.parametrize("value", ["true", "false", "0", "nonsense"])
def test_what_the_user_has_set_stays(value: str) -> None:
    environ = {"SLURM_PROCID": "0", "CUDA_VISIBLE_DEVICES": "0"}
    environ["TF_FORCE_GPU_ALLOW_GROWTH"] = value
    step = SlurmStep.read(environ)
    apply_gpus(choose_gpus(step, 0, range(2), 2), step, environ)
    assert environ["TF_FORCE_GPU_ALLOW_GROWTH"] == value
