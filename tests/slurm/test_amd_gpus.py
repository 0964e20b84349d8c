"""ROCm applies ROCR_VISIBLE_DEVICES first; the other variables number the remaining devices.

Source: "GPU Isolation Techniques" in ROCm's documentation. Slurm sets all variables alike.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from kinds import Texts
from task_variables import ONE_NODE

import slurm_resolver as sr
from slurm_resolver.slurm import gpu_variables

ROCR = "ROCR_VISIBLE_DEVICES"
HIP = "HIP_VISIBLE_DEVICES"
CUDA = "CUDA_VISIBLE_DEVICES"
ORDINAL = "GPU_DEVICE_ORDINAL"


def second_task(variables: Texts) -> tuple[Any, Any]:
    """Returns the devices of the second of two tasks, and the variables that it sets."""
    cluster = sr.resolve(environ={**ONE_NODE, **variables})
    return cluster.gpus, cluster.gpu_decision.settings


@pytest.fixture(params=[True, False], ids=["ROCm", "no ROCm"])
def amd(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> bool:
    """Whether this machine seems to have AMD's driver."""
    driver = tmp_path / "kfd"
    monkeypatch.setattr(gpu_variables, "_AMD_DRIVER", driver)
    if request.param:
        driver.touch()
    return bool(request.param)


def test_a_share(amd: bool) -> None:
    devices, settings = second_task(dict.fromkeys((ROCR, HIP, ORDINAL), "4,5"))
    assert devices == ("5",)
    assert settings == {
        ROCR: "5",
        HIP: "0",
        ORDINAL: "0",
    }
    _, settings = second_task(dict.fromkeys((ROCR, CUDA), "4,5"))
    assert settings == {ROCR: "5", CUDA: "0" if amd else "5"}


def test_bound_devices_are_numbered_for_rocm(amd: bool) -> None:
    """Slurm gives the task GPU 3 in all variables, but ROCm finds no number 3 in one device."""
    devices, settings = second_task(
        {
            **dict.fromkeys((ROCR, CUDA), "3"),
            "SLURM_GPUS_ON_NODE": "4",
            "SLURMD_TRES_BIND": "gres/gpu:per_task:1",
        }
    )
    assert devices == ("3",)
    assert settings == ({ROCR: "3", CUDA: "0"} if amd else {})


def test_a_variable_that_hides_all_devices(amd: bool) -> None:
    devices, _ = second_task({ROCR: "GPU-a,GPU-b", HIP: "0,1", ORDINAL: ""})
    assert devices == ()


@pytest.mark.parametrize("numbers", ["2", "1"])
def test_variables_that_contradict_each_other(numbers: str) -> None:
    message = rf"ROCR_\w+=4,5, but HIP_\w+={numbers}; .* Unset HIP_"
    with pytest.raises(sr.GpuError, match=message):
        second_task({ROCR: "4,5", HIP: numbers})
