"""What `check` says of how the tasks of a node divide its GPUs."""

from __future__ import annotations

from typing import Any, Dict, List, Tuple

import pytest

from slurm_resolver.preflight.gpu_check import TaskGpus, _describe, find_problems


def tasks(*shown: str, **fields: Any) -> List[TaskGpus]:
    """The tasks of a node, by what each is shown; they use all of it, or `devices`."""
    devices = fields.pop("devices", [one.partition(" of ")[0] for one in shown])
    jobs = fields.pop("jobs", ["worker"] * len(shown))
    every: Dict[str, Any] = {"growth": True, "granted": len(shown), **fields}
    return [
        TaskGpus(rank, rank, jobs[rank], devices[rank].split(","), one, **every)
        for rank, one in enumerate(shown)
    ]


PER_TASK, SINGLE = "gres/gpu:per_task:1", "gpu:single:1"
HIDDEN = (
    "tasks on n1 may open no GPU but their own ({}), so that NCCL copies between them through the "
    "host's memory: ask for the GPUs by --gpus-per-node={}, without --gpus-per-task and --gpu-bind"
)
SLICE = "MIG slice"
GROWTH = "export TF_FORCE_GPU_ALLOW_GROWTH=true"
# By what the tasks of a node are shown, and what is said of it: nothing where nothing is wrong.
CASES: Dict[str, Tuple[List[TaskGpus], str]] = {
    "divided by this package": (tasks("0,1", "0,1", devices=["0", "1"]), ""),
    "bound, and not confined": (tasks("0 of 2", "1", bind=PER_TASK), ""),
    "the same, as the driver knows": (tasks("0", "1", bind=PER_TASK, by_driver=2), ""),
    "UUIDs, bound, and not confined": (tasks("GPU-a", "GPU-b", bind=PER_TASK, by_driver=2), ""),
    "one task on the node, confined": (tasks("0 of 4", bind=PER_TASK, granted=4), ""),
    "one of two uses GPUs": (tasks("0 of 2", bind=PER_TASK, granted=2), ""),
    "an evaluator beside a worker": (
        tasks("0 of 2", "0 of 2", bind=PER_TASK, jobs=["worker", "evaluator"]),
        "",
    ),
    "slices, confined": (tasks("MIG-a", "MIG-b", bind=PER_TASK, by_driver=1), ""),
    "bound, and confined": (
        tasks("0 of 2", "0 of 2", bind=PER_TASK),
        HIDDEN.format(PER_TASK, 2),
    ),
    "single:1": (tasks("0 of 2", "0 of 2", bind=SINGLE), HIDDEN.format(SINGLE, 2)),
    "two each": (
        tasks("0,1 of 4", "0,1 of 4", bind="gpu:verbose,per_task:2", granted=4),
        HIDDEN.format("gpu:verbose,per_task:2", 4),
    ),
    "a map": (
        tasks("0 of 4", "0 of 4", bind="gpu:map_gpu:3,1", granted=4),
        HIDDEN.format("gpu:map_gpu:3,1", 4),
    ),
    "masks": (
        tasks("0,1 of 4", "0,1 of 4", bind="gpu:mask_gpu:0x3,0xc", granted=4),
        HIDDEN.format("gpu:mask_gpu:0x3,0xc", 4),
    ),
    "confined, as the driver knows": (
        tasks("GPU-a", "GPU-b", bind="", by_driver=1),
        HIDDEN.format("the site confines them", 2),
    ),
    # Whether the numbers are the same GPUs, or each task's own, only the driver knows
    "a map to the same": (tasks("0 of 4", "0 of 4", bind="gpu:map_gpu:2,2", granted=4), ""),
    "masks that overlap": (
        tasks("0,1 of 4", "0,1 of 4", bind="gpu:mask_gpu:0x3,0x6", granted=4),
        "",
    ),
    "two tasks a GPU": (tasks("0 of 2", "0 of 2", bind="gpu:single:2"), ""),
    "more tasks than GPUs": (tasks("0 of 2", "0 of 2", "0 of 2", bind=PER_TASK, granted=2), ""),
    "one GPU for two": (
        tasks("0", "0", granted=1),
        (
            "GPU 0 of n1 is used by the ranks 0, 1, but NCCL takes no GPU twice: start a task "
            "for each GPU (--ntasks-per-node=1)"
        ),
    ),
    "one GPU for two, whose memory the first takes": (
        tasks("0", "0", granted=1, growth=False),
        (
            "GPU 0 of n1 is used by the ranks 0, 1, but NCCL takes no GPU twice and the first "
            "takes all of its memory: start a task for each GPU (--ntasks-per-node=1), or, without "
            f"NCCL, {GROWTH} before srun"
        ),
    ),
    "one of two GPUs for both": (
        tasks("1", "1", granted=2),
        (
            "GPU 1 of n1 is used by the ranks 0, 1, but NCCL takes no GPU twice: others are free, "
            "leave --gpu-bind and --ntasks-per-gpu out"
        ),
    ),
    "one GPU for a worker and an evaluator": (
        tasks("0", "0", granted=1, jobs=["worker", "evaluator"]),
        "",
    ),
    "the same, and the first takes all of its memory": (
        tasks("0", "0", granted=1, growth=False, jobs=["worker", "evaluator"]),
        (
            "GPU 0 of n1 is used by the ranks 0, 1, but the first takes all of its memory: "
            f"{GROWTH} before srun"
        ),
    ),
    "slices that are not used": (
        tasks("MIG-a,MIG-b", devices=["MIG-a"], unused=1),
        (
            f"1 {SLICE} on n1 is not used, as CUDA shows a process only one: start a task for each "
            "(--ntasks-per-node=2)"
        ),
    ),
    "the slices of two tasks": (
        tasks("MIG-a,MIG-b", "MIG-c,MIG-d", devices=["MIG-a", "MIG-c"], unused=1),
        f"2 {SLICE}s on n1 are not used, as CUDA shows a process only one: start a task for",
    ),
    "a GPU that is lost": (
        tasks("0,1,2,3", "0,1,2,3", devices=["0,1", "2,3"], granted=4, by_driver=3),
        (
            "the driver on n1 knows 3 of the 4 GPUs that Slurm shows rank 0: do without the node "
            "(sbatch --exclude=n1)"
        ),
    ),
}


@pytest.mark.parametrize("name", CASES)
def test_what_is_said(name: str) -> None:
    given, told = CASES[name]
    found = find_problems({"n1": given})
    assert len(found) == bool(told), found
    assert "".join(found).startswith(told)


def test_tasks_with_parameter_servers_need_no_nccl() -> None:
    confined = {"n1": tasks("0 of 2", "0 of 2", bind=PER_TASK)}
    assert find_problems(confined, asynchronous=True) == []
    shared = {"n1": tasks("0", "0", granted=1)}
    assert find_problems(shared, asynchronous=True) == []
    assert _describe(shared) == "1, 1 of them shared by tasks"
    (found,) = find_problems({"n1": tasks("0", "0", growth=False)}, asynchronous=True)
    assert found.endswith(f"the first takes all of its memory: {GROWTH} before srun")


def test_nodes_with_the_same_fault_are_told_together() -> None:
    nodes = {f"n{i}": tasks("0 of 2", "0 of 2", bind=PER_TASK) for i in range(1, 30)}
    (found,) = find_problems(nodes)
    assert found.startswith("tasks on n[1-29] may open no GPU")


def test_the_line() -> None:
    assert _describe({"n1": tasks("0", "1")}) == "2, each used by one task"
    assert _describe({"n1": tasks("0 of 2", "0 of 2", bind=PER_TASK)}) == "2, each used by one task"
    unsure = _describe({"n1": tasks("0 of 2", "0 of 2", bind="gpu:single:2")})
    assert unsure.startswith("2; on n1 each task's are numbered from 0: whether tasks share them")
