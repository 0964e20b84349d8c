"""The local launcher's GPUs: the variables of each task."""

from __future__ import annotations

import re

import pytest
from kinds import Strings, Texts

from slurm_resolver.errors import GpuError
from slurm_resolver.local.environment import gpu_variables
from slurm_resolver.slurm.gpu_variables import CUDA


@pytest.mark.parametrize(
    ("tasks", "gpus", "per_task", "visible", "expected"),
    [
        (2, 2, None, "4,5,6", ["4,5", "4,5"]),
        (2, None, 1, "7,3", ["7", "3"]),
        (2, None, 2, "4,5,6,7", ["4,5", "6,7"]),
        (2, None, 1, "GPU-aa,MIG-bb", ["GPU-aa", "MIG-bb"]),
        (2, 0, None, "4,5", ["", ""]),
    ],
)
def test_tasks_get_the_first_of_the_launchers_gpus(
    tasks: int, gpus: int | None, per_task: int | None, visible: str, expected: Strings
) -> None:
    found = gpu_variables(tasks, gpus, per_task, {CUDA: visible})
    assert [task[CUDA] for task in found] == expected
    assert [task.get("SLURM_STEP_GPUS", "") for task in found] == expected


@pytest.mark.parametrize(
    ("gpus", "per_task", "environ", "message"),
    [
        (
            3,
            None,
            {CUDA: "0,1"},
            "GPUs requested: 3, but CUDA_VISIBLE_DEVICES, or the driver without it, shows 0,1.",
        ),
        (None, 2, {CUDA: "0,1"}, "GPUs requested: 4"),
        (5, None, {}, "or the driver without it, shows 0,1,2,3. Ask for"),
    ],
)
def test_more_gpus_than_there_are(
    gpus: int | None,
    per_task: int | None,
    environ: Texts,
    message: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("slurm_resolver.local.environment.count_driver_gpus", lambda: 4)
    with pytest.raises(GpuError, match=re.escape(message)):
        gpu_variables(2, gpus, per_task, environ)
