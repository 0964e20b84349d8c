"""Which CPUs and GPUs `check --speed` takes for slow, and how they are measured."""

from __future__ import annotations

import subprocess
import sys
from typing import Any, Dict, List, Tuple

import pytest
from recorded_steps import recordings

import slurm_resolver as sr
from slurm_resolver.preflight import work_speed
from slurm_resolver.preflight.work_check import Measured, check_work, find_slow, measured_here
from slurm_resolver.preflight.work_speed import Speed, measure_cpu, measure_work

CLUSTER = sr.resolve(environ=next(r for r in recordings() if r.name.endswith("even_2x2")).tasks[0])
CPU, GPU = Speed(800e6, 9e9), Speed(60e12, 1.2e12)


def cpus(*parts: float) -> List[Measured]:
    """CPUs that compute this part of what a usual one does."""
    return [
        Measured(rank, f"n{rank}", "CPU", Speed(800e6 * part, 9e9, min(1.0, part)))
        for rank, part in enumerate(parts)
    ]


# By how fast the CPUs are: the ranks that are slow.
CASES: Dict[str, Tuple[List[Measured], List[int]]] = {
    "none": ([], []),
    "one": (cpus(1), []),
    "all alike": (cpus(1, 1.1, 0.9, 1), []),
    "half as fast": (cpus(1, 1, 0.5), []),
    "a fourth": (cpus(1, 1, 0.25), [2]),
    "two of five": (cpus(0.1, 1, 1, 0.2, 1), [0, 3]),
    "faster than the others": (cpus(9, 1, 1, 1), []),
    "half of them": (cpus(0.1, 0.1, 1, 1), [0, 1]),
    "most of them": (cpus(0.1, 0.1, 1), []),  # these are the usual ones
    "of two a fifth": (cpus(1, 0.2), []),
    "of two a twentieth": (cpus(0.05, 1), [0]),
}


@pytest.mark.parametrize("name", CASES)
def test_who_is_slow(name: str) -> None:
    measured, slow = CASES[name]
    assert [one.rank for one, _ in find_slow(measured)] == slow


def note(cpu: Speed = CPU, **more: Any) -> Dict[str, Any]:
    return {"cpu_speed": list(cpu), "devices": None, "shown": "", **more}


def on_gpu(device: str, speed: Speed = GPU, **more: Any) -> Dict[str, Any]:
    gpu = {"devices": [device], "shown": device, "gpu_speeds": {device: list(speed)}}
    return note(**{**gpu, "gpu_problem": "", **more})


SLOW_GPU = Speed(5e12, 1.2e12)
# By what the four tasks of two nodes measured: the status, what is said, what is measured again.
TOLD: Dict[str, Tuple[List[Dict[str, Any]], str, str, List[Tuple[int, str]]]] = {
    "no fault": ([note()] * 4, "ok", "a CPU hashes 800 MB/s, copies 9.0 GB/s", []),
    "GPUs": (
        [on_gpu("0"), on_gpu("1")] * 2,
        "ok",
        "a CPU hashes 800 MB/s, copies 9.0 GB/s; a GPU multiplies 60.0 TFLOP/s, copies 1200.0 GB/s",
        [],
    ),
    "another has the CPU": (
        [note(), note(), note(), note(Speed(40e6, 8e9, 0.05))],
        "warning",
        (
            "rank 3 on n1: the CPU hashes 40 MB/s (median 800 MB/s): look at what else runs there: "
            "the task got 5% of a CPU, or do without the node (sbatch --exclude=n1)"
        ),
        [(3, "CPU")],
    ),
    "a slow memory": (
        [note(), note(), note(Speed(800e6, 1e9)), note(Speed(800e6, 1.5e9))],
        "warning",
        (
            "ranks 2-3 on n1: the CPU copies 1.0 GB/s (median 5.2 GB/s): look at what else runs "
            "there, its clocks and its heat, or do without the node (sbatch --exclude=n1)"
        ),
        [(2, "CPU"), (3, "CPU")],
    ),
    "a slow GPU": (
        [on_gpu("0"), on_gpu("1"), on_gpu("0"), on_gpu("1", SLOW_GPU)],
        "warning",
        "rank 3 on n1: the GPU 1 multiplies 5.0 TFLOP/s (median 60.0 TFLOP/s): look at what else",
        [(3, "GPU")],
    ),
    "a GPU that two tasks measure together": (
        [on_gpu("0"), on_gpu("1"), on_gpu("0", SLOW_GPU), on_gpu("0", SLOW_GPU)],
        "ok",
        "",
        [],
    ),
    "the same number, and each task's own": (
        [on_gpu("0"), on_gpu("1"), *[on_gpu("0", SLOW_GPU, shown="0 of 2")] * 2],
        "warning",
        "ranks 2-3 on n1: the GPU 0 multiplies 5.0 TFLOP/s (median 32.5 TFLOP/s)",
        [(2, "GPU"), (3, "GPU")],
    ),
    "a TensorFlow without GPUs": (
        [note(devices=["0", "1"], gpu_speeds={}, gpu_problem="")] * 4,
        "warning",
        "GPUs of ranks 0-3: TensorFlow finds none of them: pip install 'tensorflow[and-cuda]'",
        [],
    ),
    "a GPU that TensorFlow does not find": (
        [on_gpu("0"), on_gpu("1", devices=["1", "2"])],
        "warning",
        "GPUs of rank 1: TensorFlow finds 1 of 2: pip install 'tensorflow[and-cuda]'",
        [],
    ),
    "a TensorFlow that fails": (
        [note(), note(devices=["0"], gpu_speeds={}, gpu_problem="no space left")],
        "warning",
        "GPUs of rank 1: cannot be measured: no space left",
        [],
    ),
    "without TensorFlow": ([note(devices=["0"])] * 4, "ok", "a CPU hashes", []),
}


@pytest.mark.parametrize("name", TOLD)
def test_what_is_said(name: str) -> None:
    notes, status, told, again = TOLD[name]
    ((id, found, detail),), measured_again = check_work(dict(enumerate(notes)), CLUSTER)
    assert (id, found) == ("work", status), detail
    assert detail.startswith(told)
    assert measured_again == again


def test_nothing_is_said_where_nothing_was_measured() -> None:
    assert check_work({0: {"devices": None}}, CLUSTER) == ([], [])


def test_the_cpu_is_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(work_speed, "_TRY_SECONDS", 0.001)
    speed = measure_cpu()
    assert speed.computed > 0
    assert speed.copied > 0
    assert 0 <= speed.share <= 1
    here = measured_here()
    assert here.status == "ok"
    assert here.detail.startswith("a CPU hashes ")


def test_little_memory_will_do() -> None:
    code = """
import resource
from slurm_resolver.preflight.work_speed import _blocks
used = int(open("/proc/self/statm").read().split()[0]) * resource.getpagesize()
resource.setrlimit(resource.RLIMIT_AS, (used + 2**24, -1))
source, target = _blocks(2**25)
assert len(source) == len(target) < 2**25
"""
    subprocess.run([sys.executable, "-c", code], check=True)


PROGRAMS: Dict[str, Tuple[str, Dict[str, List[float]], str]] = {
    "two": ("print('log'); print('{\"gpus\": [[1, 2], [3, 4]]}')", {"0": [1, 2, 1]}, ""),
    "none": ("print('{\"gpus\": []}')", {}, ""),
    "an error": (
        "raise ImportError('no libcuda')",
        {},
        "TensorFlow failed with status 1: ImportError: no libcuda",
    ),
    "something else": ("print([1])", {}, "TensorFlow failed with status 0: "),
    "silence": ("", {}, "TensorFlow failed with status 0: "),
    "too slow": ("import time; time.sleep(60)", {}, "TensorFlow has not measured them in 1 s"),
}


@pytest.mark.parametrize("name", PROGRAMS)
def test_gpus_are_measured_by_a_program(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Which is a stand-in here, that sees what this task shows to TensorFlow."""
    code, speeds, problem = PROGRAMS[name]
    code = f"import os; assert os.environ['TF_FORCE_GPU_ALLOW_GROWTH'] == 'true'; {code}"
    monkeypatch.setattr(work_speed, "GPU_PROGRAM", [sys.executable, "-c", code])
    if name == "too slow":
        monkeypatch.setattr(work_speed, "_GPU_SECONDS", 0.9)
    decision = CLUSTER.gpu_decision
    assert decision is not None
    cluster = CLUSTER._replace(gpu_decision=decision._replace(devices=("0",)))
    found: Dict[str, Any] = {"tensorflow": None}
    measure_work(cluster, found, ["GPU"])
    assert found == {"tensorflow": None}
    found["tensorflow"] = "2.99"
    measure_work(cluster, found, ["GPU"])
    assert found == {"tensorflow": "2.99", "gpu_speeds": speeds, "gpu_problem": problem}


def test_the_best_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    found: Dict[str, Any] = {}
    for speed in (Speed(1, 9, 0.5), Speed(2, 8, 0.4)):
        monkeypatch.setattr(work_speed, "measure_cpu", lambda speed=speed: speed)
        measure_work(CLUSTER, found, ["CPU"])
    assert found == {"cpu_speed": [2, 9, 0.5]}
