"""What `check` says of how the tasks of a node divide its GPUs."""

from __future__ import annotations

from typing import Any, Dict, List, Tuple

import pytest

from slurm_resolver.preflight.gpu_check import GpuFacts, check_gpus


def tasks(*devices: str, jobs: str = "worker", **fields: Any) -> List[GpuFacts]:
    """The tasks of a node by the GPUs that each uses; the last job is that of the others too."""
    names = [*jobs.split(), *[jobs.split()[-1]] * len(devices)]
    every = {"granted": len(devices), **fields}
    return [
        GpuFacts(
            rank, names[rank], own.split(","), **every,
            names=None if fields.get("from_zero") else own.split(","),
        )
        for rank, own in enumerate(devices)
    ]  # fmt: skip


HIDDEN = "the tasks on n1 have GPUs that are numbered from 0 in each (gres/gpu:per_task:1): NCCL"
TWICE = "gradients go by gRPC, slow: rank 0 shares GPU 0 with rank 1: start one task for each GPU"
EACH_FROM_ZERO: Dict[str, Any] = {"from_zero": True, "bind": "gres/gpu:per_task:1"}
# By what the tasks of a node tell, the status and what is said.
CASES: Dict[str, Tuple[List[GpuFacts], str, str]] = {
    "none": ([], "skipped", "no task has any"),
    "one each": (
        tasks("0", "1"),
        "ok",
        "2, each used by one task; gradients go by NCCL",
    ),
    "numbered from 0 in each": (tasks("0", "0", **EACH_FROM_ZERO), "warning", HIDDEN),
    "only one of them from 0": (
        [*tasks("0", **EACH_FROM_ZERO), *tasks("1")],
        "ok",
        "2, each used by one task",
    ),
    "one task": (tasks("0", **EACH_FROM_ZERO), "ok", "1, each used by one task"),
    "an evaluator beside a worker": (
        tasks("0", "0", jobs="worker evaluator", **EACH_FROM_ZERO),
        "ok",
        "2, each used by one task",
    ),
    "one GPU for two": (tasks("0", "0"), "warning", TWICE),
    "one GPU for a worker and an evaluator": (
        tasks("0", "0", jobs="worker evaluator"),
        "ok",
        "1, 1 of them shared by tasks",
    ),
    "a GPU that is lost": (
        tasks("0,1", missing=1),
        "warning",
        "the driver on n1 does not know 1 of the GPUs that Slurm shows rank 0: do without the node",
    ),
}


@pytest.mark.parametrize(("given", "status", "told"), CASES.values(), ids=CASES)
def test_what_is_said(given: List[GpuFacts], status: str, told: str) -> None:
    result = check_gpus({"n1": given} if given else {}, asynchronous=False)
    assert (result.status, result.detail[: len(told)]) == (status, told)


def test_tasks_with_parameter_servers_need_no_nccl() -> None:
    for given in (tasks("0", "0", **EACH_FROM_ZERO), tasks("0", "0")):
        assert check_gpus({"n1": given}, asynchronous=True).status == "ok"
