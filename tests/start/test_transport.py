"""The library that reduces the tasks' gradients, and the result of `check` for their GPUs."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest
from kinds import Texts
from task_variables import ONE_NODE

from slurm_resolver import resolve
from slurm_resolver.cluster.addresses import Task
from slurm_resolver.preflight.step_checks import check_gpus
from slurm_resolver.start import transport
from slurm_resolver.start.transport import (
    TaskDevices,
    find_transport,
    task_devices,
    why_no_gpu,
)


def devices(node: str, *gpus: str, usable: int | None = None, confined_to: str = "") -> TaskDevices:
    """Returns a task's devices; "?" is a GPU whose name is not the same in all tasks."""
    return TaskDevices(
        node,
        None if gpus == ("?",) else list(gpus),
        len(gpus) if usable is None else usable,
        confined_to,
    )


NCCL = "gradients use NCCL"
SLOW = "gradients use gRPC (slow), because "
OWN = [devices("n1", f"0 of local rank {rank}", confined_to="0") for rank in (0, 1)]
EQUAL = [task._replace(confined_to=str(rank)) for rank, task in enumerate(OWN)]
SHARE = [devices("n1", "3")] * 2
TRANSPORTS: list[tuple[list[TaskDevices], str]] = [
    (
        [devices("n1", "0"), devices("n2", "0")],
        NCCL,
    ),
    (
        [devices("n1", "?"), devices("n2", "?")],
        NCCL,
    ),  # one task on each node
    (OWN, f"{NCCL} through the host's memory, because worker 0 and worker 1 cannot open each"),
    (
        [devices("n1", usable=0)] * 2,
        "gradients use gRPC: no task computes on a GPU",
    ),
    (
        [
            devices("n1", "0"),
            devices("n2", "0", usable=0),
        ],
        f"{SLOW}TensorFlow finds no GPU in wor",
    ),
    (EQUAL, f"{SLOW}worker 0 and worker 1 see a GPU 0, but SLURM_STEP_GPUS has 0 and 1"),
    (SHARE, f"{SLOW}worker 0 and worker 1 share GPU 3"),
    (
        [devices("n1", "0"), devices("n1", "?")],
        f"{SLOW}worker 0 and worker 1 may share a GPU",
    ),
    (
        [devices("n1", "MIG-1"), devices("n2", "0")],
        f"{SLOW}worker 0 has a MIG slice",
    ),
]


@pytest.mark.parametrize(("tasks", "told"), TRANSPORTS)
def test_nccl_needs_gpus_of_its_own(tasks: list[TaskDevices], told: str) -> None:
    nccl, sentence, _ = find_transport(
        {f"worker {index}": task for index, task in enumerate(tasks)}
    )
    assert nccl == told.startswith(NCCL)
    assert sentence.startswith(told)


ALONE = "2 tasks with GPUs"
TWO = "worker worker"


@pytest.mark.parametrize(
    ("gpus", "jobs", "status", "told"),
    [
        ([], "", "skipped", "no task has any"),
        (
            [devices("n1", "0"), devices("n1", "1")],
            TWO,
            "ok",
            f"{ALONE}; {NCCL}",
        ),
        (SHARE, TWO, "warning", f"{SLOW}rank 0 and rank 1 share GPU 3: start one task for each"),
        (
            OWN,
            TWO,
            "warning",
            f"{NCCL} through the host's memory, because rank 0 and rank 1 cannot",
        ),
        (SHARE, "worker evaluator", "ok", "2 tasks with GPUs"),
        (OWN, "worker evaluator", "ok", ALONE),
    ],
)
def test_what_check_says(gpus: list[TaskDevices], jobs: str, status: str, told: str) -> None:
    result = check_gpus(
        dict(enumerate(gpus)),
        [
            Task(
                rank,
                "n1",
                rank,
                job,
                0,
                f"n1:{rank}",
            )
            for rank, job in enumerate(jobs.split())
        ],
    )
    assert (
        result.status,
        result.detail[: len(told)],
    ) == (status, told)


STEP = {**ONE_NODE, "SLURM_GPUS_ON_NODE": "2"}
BIND = "SLURMD_TRES_BIND"


@pytest.mark.parametrize(
    ("variables", "gpus"),
    [
        ({"CUDA_VISIBLE_DEVICES": "0,1"}, ["1"]),
        ({"CUDA_VISIBLE_DEVICES": ""}, []),  # a program that computes on CPUs
        # a confined task's GPUs are numbered from 0, and the other task's GPUs may differ
        ({"CUDA_VISIBLE_DEVICES": "0"}, None),
        ({"CUDA_VISIBLE_DEVICES": "0", BIND: "gres/gpu:per_task:1"}, ["0 of local rank 1"]),
        ({"CUDA_VISIBLE_DEVICES": "0", "SLURM_STEP_GPUS": "0,1"}, ["0"]),  # set by a script
    ],
)
def test_what_a_task_tells(variables: Texts, gpus: Sequence[str] | None) -> None:
    told = task_devices(resolve(environ={**STEP, **variables}), usable=1)
    assert (told.node, told.usable) == ("n9", 1)
    assert (told.gpus if told.gpus is None else list(told.gpus)) == gpus


def test_why_tensorflow_finds_no_gpu(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(transport, "_DRIVER", tmp_path / "none")
    assert why_no_gpu(False, False).startswith("TensorFlow was built without CUDA: pip uninstall")
    assert why_no_gpu(True, False).startswith("NVIDIA's driver is not loaded on this node")
