"""The first worker says where the time of a training went."""

from __future__ import annotations

import os
import re
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import tensorflow as tf
from folders import HELPERS
from kinds import Strings
from local_run import captured, in_step

from slurm_resolver.tf.gpu_usage import GpuUsage

PROGRAM = str(HELPERS / "usage_training.py")
SHARE = r"([a-z][a-z ]+) (\d+)%"


def usage(folder: Path, *arguments: str, status: int = 0, **env: str) -> Strings:
    """Trains with two workers, and returns the lines about the usage."""
    done = captured(
        in_step("-n 2", sys.executable, PROGRAM, *arguments),
        status,
        cwd=folder,
        env={**os.environ, "TF_CPP_MIN_LOG_LEVEL": "3", **env},
    )
    return [line for line in done.stderr.splitlines() if "usage of" in line]


@pytest.mark.parametrize("cause", ["computing", "between steps", "waiting for data"])
def test_the_slow_worker_and_its_cause(cause: str, tmp_path: Path) -> None:
    line, *_ = usage(tmp_path, cause)
    head = "0: slurm_resolver: usage of fit: 2 epochs, 40 steps in "
    assert line.startswith(head)
    assert " s with 2 workers on 1 node, " in line
    assert line.endswith("slowest: worker 1 (rank 1 on localhost)")
    shares = {name: int(share) for name, share in re.findall(SHARE, line)}
    assert "validation" in shares
    others = {"computing", "between steps", "waiting for data"} - {cause}
    assert all(shares[cause] > 2 * shares.get(other, 0) for other in others)
    # The other worker waits for about as long.
    assert shares["waiting for other workers and sending"] > shares[cause] / 3
    ms = float(line.partition(" ms a step")[0].rpartition(" ")[2])
    assert ms > 50


def test_a_training_that_exits_says_it_too(tmp_path: Path) -> None:
    lines = usage(tmp_path, "exit", status=75)
    assert lines[0].startswith("0: slurm_resolver: usage of fit: 1 epoch, 20 steps in ")


def test_a_loop_says_it_too(tmp_path: Path) -> None:
    line, *_ = usage(tmp_path, "waiting for data", "loop")
    assert line.startswith("0: slurm_resolver: usage of the loop: 2 epochs, 40 steps in ")
    assert "slowest: worker 1" in line


def test_only_the_first_of_short_trainings_says_it(tmp_path: Path) -> None:
    assert len([line for line in usage(tmp_path, "nothing", "twice") if "40 steps" in line]) == 1


def test_it_can_be_switched_off(tmp_path: Path) -> None:
    assert usage(tmp_path, "nothing", SLURM_RESOLVER_REPORT="off") == []


@pytest.mark.parametrize("visible", ["1,GPU-abc", None])
def test_gpus_are_read_by_nvml(visible: str | None, monkeypatch: pytest.MonkeyPatch) -> None:
    busy = {0: 10, 1: 50, "GPU-abc": 100}
    begun = []
    nvml: Any = SimpleNamespace(
        nvmlInit=lambda: begun.append("NVML"),
        nvmlDeviceGetCount=lambda: 2,
        nvmlDeviceGetHandleByIndex=lambda index: index,
        nvmlDeviceGetHandleByUUID=lambda name: name,
        nvmlDeviceGetUtilizationRates=lambda handle: SimpleNamespace(gpu=busy[handle]),
    )
    monkeypatch.setitem(sys.modules, "pynvml", nvml)
    gpus = [SimpleNamespace(name=f"/device:GPU:{index}") for index in (0, 1)]
    monkeypatch.setattr(tf.config, "list_logical_devices", lambda kind: gpus)
    peaks = {"GPU:0": 5, "GPU:1": 7}
    monkeypatch.setattr(
        tf.config.experimental, "get_memory_info", lambda name: {"peak": peaks[name]}
    )
    if visible is None:
        monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    else:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    usage_of_gpus = GpuUsage()
    usage_of_gpus.sample()
    usage_of_gpus.sample()
    assert usage_of_gpus.busy == ([50, 100] if visible else [10, 50]) * 2
    assert usage_of_gpus.peak_memory == 7
    assert begun == ["NVML"]
