"""Which library reduces the gradients of which tasks."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Dict, Optional, Sequence

import pytest

from slurm_resolver import resolve
from slurm_resolver.preflight.keras_version import check_versions
from slurm_resolver.preflight.transport import TaskDevices, find_transport, task_devices


def name_of(rank: int) -> str:
    return f"worker {rank}"


def devices(node: str, gpus: Optional[Sequence[str]], usable: int = 1) -> TaskDevices:
    return TaskDevices(node, gpus, usable)


SLOW = "gradients go by gRPC, slow: "


@pytest.mark.parametrize(
    ("tasks", "sentence"),
    [
        ([devices("n1", ["0"]), devices("n2", ["0"])], ""),
        ([devices("n1", ["0"]), devices("n1", ["1"])], ""),
        ([devices("n1", ["0", "1"], 2), devices("n1", ["2", "3"], 2)], ""),
        ([devices("n1", None, 4), devices("n2", None, 4)], ""),  # one task on each node
        ([devices("n1", ["0"], 0)] * 2, "gradients go by gRPC: no task computes on a GPU"),
        (
            [devices("n1", ["0"]), devices("n2", ["0"], 0)],
            f"{SLOW}TensorFlow finds no GPU in worker 1",
        ),
        (
            [devices("n1", ["0"]), devices("n2", ["3"]), devices("n2", ["3"])],
            f"{SLOW}worker 1 shares GPU 3 with worker 2",
        ),
        (
            [devices("n1", ["0"]), devices("n1", None)],
            f"{SLOW}worker 0 and worker 1 may share a GPU",
        ),
        ([devices("n1", ["MIG-1"]), devices("n2", ["0"])], f"{SLOW}worker 0 has a MIG slice"),
    ],
)
def test_nccl_needs_gpus_of_its_own(tasks: Sequence[TaskDevices], sentence: str) -> None:
    nccl, told, _ = find_transport(dict(enumerate(tasks)), name_of)
    assert nccl == (not sentence)
    assert told == (sentence or "gradients go by NCCL")


STEP = {
    "SLURM_JOB_ID": "42",
    "SLURM_STEP_ID": "0",
    "SLURM_STEP_NODELIST": "n9",
    "SLURM_STEP_NUM_TASKS": "2",
    "SLURM_STEP_TASKS_PER_NODE": "2",
    "SLURM_PROCID": "1",
}


@pytest.mark.parametrize(
    ("variables", "gpus"),
    [
        # all tasks see the same, and each takes its share
        ({"CUDA_VISIBLE_DEVICES": "0,1", "SLURM_GPUS_ON_NODE": "2"}, ["1"]),
        # bound by Slurm, with the numbers of the node
        ({"CUDA_VISIBLE_DEVICES": "1", "SLURM_GPUS_ON_NODE": "2"}, ["1"]),
        # confined to its own, which are numbered from 0: the other task's may be others
        ({"CUDA_VISIBLE_DEVICES": "0", "SLURM_GPUS_ON_NODE": "2"}, None),
        (
            {
                "CUDA_VISIBLE_DEVICES": "0",
                "SLURM_GPUS_ON_NODE": "2",
                "SLURMD_TRES_BIND": "gres/gpu:per_task:1",
            },
            ["0 of local rank 1"],
        ),
        ({"ROCR_VISIBLE_DEVICES": "2,3", "SLURM_GPUS_ON_NODE": "2"}, ["3"]),
    ],
)
def test_what_a_task_tells(variables: Dict[str, str], gpus: Optional[Sequence[str]]) -> None:
    told = task_devices(resolve(environ={**STEP, **variables}), usable=1)
    assert (told.node, told.usable) == ("n9", 1)
    assert (told.gpus if told.gpus is None else list(told.gpus)) == gpus


@pytest.mark.parametrize(
    ("built", "uses_gpus", "status"),
    [
        ("('is_cuda_build', False), ('is_rocm_build', False)", True, "warning"),
        ("('is_cuda_build', False), ('is_rocm_build', False)", False, "ok"),
        ("('is_cuda_build', True), ('is_rocm_build', False)", True, "ok"),
        ("('is_cuda_build', False), ('is_rocm_build', True)", True, "ok"),
        ("", True, "ok"),
    ],
)
def test_a_tensorflow_without_cuda(
    built: str, uses_gpus: bool, status: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    package = tmp_path / "tensorflow"
    (package / "python" / "platform").mkdir(parents=True)
    (package / "__init__.py").write_text("")
    (package / "python" / "platform" / "build_info.py").write_text(f"build_info = [{built}]")
    (tmp_path / "tensorflow-2.21.0.dist-info").mkdir()
    (tmp_path / "tensorflow-2.21.0.dist-info" / "METADATA").write_text("Version: 2.21.0")
    monkeypatch.delitem(sys.modules, "tensorflow", raising=False)
    monkeypatch.syspath_prepend(str(tmp_path))
    tensorflow, _ = check_versions(uses_gpus)
    assert tensorflow.status == status
    assert ("pip install 'tensorflow[and-cuda]'" in tensorflow.detail) == (status == "warning")
