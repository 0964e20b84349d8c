"""What `check` says of what the driver tells of GPUs: by a stand-in for nvidia-ml-py."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from typing import Any, Dict, Iterator, List, Sequence, Tuple

import pytest
from folders import HELPERS
from stand_ins import pynvml as stand_in

from slurm_resolver.preflight.gpu_state_check import TaskDriver, find_faults
from slurm_resolver.slurm.gpu_state import DriverState, GpuState, read_driver_state

A100, A40 = "NVIDIA A100-SXM4-80GB", "NVIDIA A40"
GIB = 2**30


@pytest.fixture
def driver(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Sets what the driver of this machine tells."""
    monkeypatch.setitem(sys.modules, "pynvml", stand_in)

    def tell(*gpus: Dict[str, Any], version: str = "550.90.07") -> None:
        value = {"*": {"driver": version, "gpus": gpus}}
        monkeypatch.setenv("NVML_STAND_IN", json.dumps(value))

    return tell


def read(*devices: str, job: str = "42", shared: bool = False) -> Sequence[GpuState]:
    state = read_driver_state(devices, job, shared)
    assert state is not None
    assert state.version == "550.90.07"
    return state.gpus


@pytest.fixture
def process() -> Iterator[subprocess.Popen[bytes]]:
    """A process of job 42."""
    environ = {**os.environ, "SLURM_JOB_ID": "42"}
    with subprocess.Popen(["sleep", "60"], env=environ) as process:
        yield process
        process.kill()


class TestWhatTheDriverTells:
    def test_no_library_and_no_driver(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setitem(sys.modules, "pynvml", None)
        assert read_driver_state(["0"], "42") is None
        monkeypatch.setitem(sys.modules, "pynvml", stand_in)
        monkeypatch.setenv("NVML_STAND_IN", "{}")
        assert read_driver_state(["0"], "42") is None

    @pytest.mark.parametrize(
        ("device", "uuid"),
        [
            ("1", "GPU-bb"),
            ("GPU-bb", "GPU-bb"),
            ("GPU-b", "GPU-bb"),  # shortened
            ("MIG-cc", "MIG-cc"),
            ("MIG-GPU-bb/1/0", "GPU-bb"),  # as older drivers name slices
        ],
    )
    def test_devices_by_each_of_their_names(self, driver: Any, device: str, uuid: str) -> None:
        driver({"uuid": "GPU-aa"}, {"uuid": "GPU-bb"}, {"uuid": "MIG-cc", "parent": "GPU-bb"})
        (gpu,) = read(device)
        assert gpu == (device, uuid, A100, 80 * GIB, 79 * GIB, [], [])

    @pytest.mark.parametrize("device", ["2", "GPU-x", "MIG-x", "MIG-GPU-x/1/0"])
    def test_devices_that_it_does_not_know(self, driver: Any, device: str) -> None:
        driver({"uuid": "GPU-aa"}, {"uuid": "GPU-bb"})
        assert read(device) == []

    def test_processes_of_the_job_are_no_strangers(
        self, driver: Any, process: subprocess.Popen[bytes]
    ) -> None:
        driver({"uuid": "GPU-aa", "users": [os.getpid(), process.pid, 2**22 + 1]})
        assert read("0", job="42")[0].users == [(2**22 + 1, "")]
        assert read("0", job="43")[0].users == [(process.pid, "sleep"), (2**22 + 1, "")]
        assert read("0", job="43", shared=True)[0].users == []

    def test_a_gpu_that_jobs_share_by_intent(
        self, driver: Any, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        from slurm_resolver.slurm import gpu_state

        monkeypatch.setattr(gpu_state, "_command", {1: "nvidia-cuda-mps-", 2: "python"}.get)
        driver({"uuid": "GPU-aa", "users": [1, 2], "free": 3})
        assert read("0")[0] == ("0", "GPU-aa", A100, 0, 0, [], [])

    @pytest.mark.parametrize(
        ("fields", "errors"),
        [
            ({}, []),
            ({"ecc": 1}, ["1 uncorrected ECC error since it was reset"]),
            ({"ecc": 2}, ["2 uncorrected ECC errors since it was reset"]),
            ({"remap": [1, 0]}, ["rows of its memory to be remapped"]),
            ({"remap": [0, 1]}, ["rows of its memory that could not be remapped"]),
            ({"model": "Tesla V100", "retire": 1}, ["pages of its memory to be retired"]),
            ({"model": "Tesla V100", "remap": [1, 1]}, []),  # it does not remap rows
        ],
    )
    def test_errors(self, driver: Any, fields: Dict[str, Any], errors: List[str]) -> None:
        driver({"uuid": "GPU-aa", **fields}, {"uuid": "MIG-bb", "parent": "GPU-aa"})
        assert read("0")[0].errors == errors
        assert read("MIG-bb")[0].errors == errors  # a slice has those of its GPU

    def test_a_library_that_cannot_ask_it_all(
        self, driver: Any, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.delattr(stand_in, "nvmlDeviceGetRemappedRows")
        monkeypatch.delattr(stand_in, "nvmlDeviceGetComputeRunningProcesses")
        driver({"uuid": "GPU-aa", "ecc": 3})
        assert len(read("0")[0].errors) == 1


def gpu(device: str = "0", **fields: Any) -> GpuState:
    every = {"uuid": f"GPU-{device}", "model": A100, "total": 80 * GIB, "free": 79 * GIB, **fields}
    return GpuState(device, **every)


def task(rank: int, *gpus: GpuState, **fields: Any) -> TaskDriver:
    node, job = fields.get("node", f"n{rank // 2}"), fields.get("job", "worker")
    return TaskDriver(rank, job, node, DriverState(fields.get("version", "550"), gpus))


def like(*models: str, **fields: Any) -> List[TaskDriver]:
    return [task(rank, gpu(str(rank), model=one), **fields) for rank, one in enumerate(models)]


TYPES = "a step of the training is as slow as the slowest: ask for one type"
EXCLUDE = "do without the node (sbatch --exclude=n0)"
# By what the driver tells the tasks: what is said of it, nothing where nothing is wrong.
CASES: Dict[str, Tuple[List[TaskDriver], List[str]]] = {
    "no fault": (like(A100, A100, A100, A100), []),
    "no driver": ([], []),
    "memory that the driver does not tell": ([task(0, gpu(total=0, free=0))], []),
    "what a GPU needs itself": ([task(0, gpu(free=76 * GIB))], []),
    "another's process": (
        [task(0, gpu(users=[(7, "python")]))],
        [
            (
                "GPU 0 of n0 (rank 0) is in use by the process 7 (python), not of this job: end "
                f"what is yours, or {EXCLUDE}"
            )
        ],
    ),
    "others' processes, and their memory": (
        [task(0, gpu(users=[(1, "a"), (2, ""), (3, "c"), (4, "d")], free=9 * GIB))],
        [
            (
                "GPU 0 of n0 (rank 0) is in use by the processes 1 (a), 2 (not seen from here), 3 "
                "(c), …, not of this job, and 9.0 of its 80 GiB are free: end"
            )
        ],
    ),
    "a GPU that two tasks share, told once": (
        [task(0, gpu(free=70 * GIB)), task(1, gpu(free=70 * GIB))],
        ["GPU 0 of n0 (rank 0): only 70 of its 80 GiB are free, and no other job's process"],
    ),
    "the same number on two nodes": (
        [task(0, gpu(errors=["x"])), task(2, gpu(errors=["x"]))],
        [
            f"GPU 0 of n0 (rank 0) has x: {EXCLUDE}, and tell its administrators to",
            "GPU 0 of n1 (rank 2) has x: do without the node (sbatch --exclude=n1)",
        ],
    ),
    "another model": (
        like(A100, A100, A40, A100),
        [f"{A40} in rank 2 on n1, the others {A100}: {TYPES}"],
    ),
    "no model that most have": (
        like(A40, A40, A100, A100),
        [f"{A40} in ranks 0-1 on n0; {A100} in ranks 2-3 on n1: {TYPES}"],
    ),
    "two models in one task": (
        [task(0, gpu("0"), gpu("1", model=A40)), task(2, gpu("0")), task(4, gpu("0"))],
        [f"{A100} and {A40} in rank 0 on n0, the others {A100}: {TYPES}"],
    ),
    "an evaluator's own": ([task(0, gpu()), task(1, gpu(model=A40), job="evaluator")], []),
    "another driver": (
        [task(0, gpu()), task(2, gpu()), task(4, gpu(), version="535")],
        ["n2 has the driver 535, the others 550: do without those that differ (sbatch --exclude)"],
    ),
}


@pytest.mark.parametrize("name", CASES)
def test_what_is_said(name: str) -> None:
    tasks, told = CASES[name]
    found = find_faults(tasks)
    assert len(found) == len(told), found
    for text, words in zip(found, told):
        assert text.startswith(words)


def test_asynchronous_tasks_may_have_any_model() -> None:
    assert find_faults(like(A100, A40, A40), asynchronous=True) == []


def test_the_stand_in_is_where_steps_find_it() -> None:
    assert (HELPERS / "stand_ins" / "pynvml.py").samefile(stand_in.__file__)
