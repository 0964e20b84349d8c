"""The local launcher's GPUs: the variables of its tasks."""

from __future__ import annotations

import re

import pytest
from kinds import Texts

from slurm_resolver.errors import GpuError
from slurm_resolver.local.environment import gpu_variables
from slurm_resolver.slurm.gpu_variables import CUDA


@pytest.mark.parametrize(
    ("gpus", "visible", "expected"),
    [
        (2, "4,5,6", "4,5"),
        (2, "GPU-aa,MIG-bb", "GPU-aa,MIG-bb"),
        (0, "4,5", ""),
    ],
)
def test_tasks_get_the_first_of_the_launchers_gpus(gpus: int, visible: str, expected: str) -> None:
    found = gpu_variables(gpus, {CUDA: visible})
    assert found[CUDA] == expected
    assert found.get("SLURM_STEP_GPUS", "") == expected


@pytest.mark.parametrize(
    ("gpus", "environ", "message"),
    [
        (
            3,
            {CUDA: "0,1"},
            "GPUs requested: 3, but CUDA_VISIBLE_DEVICES, or the driver without it, shows 0,1.",
        ),
        (5, {}, "or the driver without it, shows 0,1,2,3. Ask for"),
    ],
)
def test_more_gpus_than_there_are(
    gpus: int,
    environ: Texts,
    message: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("slurm_resolver.local.environment.count_driver_gpus", lambda: 4)
    with pytest.raises(GpuError, match=re.escape(message)):
        gpu_variables(gpus, environ)
