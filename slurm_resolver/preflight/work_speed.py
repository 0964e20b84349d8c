"""Measures how fast this task's CPU and GPUs compute and copy.

The CPU by one thread, in Python's own C code, which needs neither NumPy nor TensorFlow; the GPUs by
TensorFlow, in a process of its own, which leaves their memory free when it ends.
"""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
import sys
import time
from typing import Callable, Dict, List, NamedTuple, Sequence, Tuple

from slurm_resolver.cluster.cluster import Cluster
from slurm_resolver.cluster.task_gpus import apply_gpus
from slurm_resolver.rendezvous.gathering import Note
from slurm_resolver.slurm.step import SlurmStep

# The best of some tries counts: others may have the CPU for a while. Each is longer than a period
# in which the kernel gives a process its share (CPU quota: 0.1 s).
TRIES = 5
_TRY_SECONDS = 0.12
_HASHED_BYTES = 2**16
_COPIED_BYTES = 16 * 2**20  # more than the caches that a core has for itself
_GPU_SECONDS = 240.0  # for TensorFlow to start, which takes minutes on a busy file system
KINDS = ("CPU", "GPU")
GPU_PROGRAM: Sequence[str] = (sys.executable, "-m", "slurm_resolver.tf.device_speed")


class Speed(NamedTuple):
    """How fast a CPU or GPU works, in two numbers whose unit its kind has.

    Attributes:
        computed: of a CPU bytes hashed a second, of a GPU operations a second in a product of
            matrices.
        copied: bytes a second.
        share: which part of a CPU this task got, at the best; 1 for a GPU.
    """

    computed: float
    copied: float
    share: float = 1.0

    def best_of(self, other: Speed) -> Speed:
        """Returns the better of the two in each number."""
        return Speed(*map(max, self, other))


def measure_work(cluster: Cluster, note: Note, kinds: Sequence[str] = KINDS) -> None:
    """Measures, and keeps the best so far in the note.

    "cpu_speed" is a `Speed`, "gpu_speeds" one by device; where the GPUs cannot be measured,
    "gpu_problem" tells why.

    Args:
        cluster: the cluster.
        note: this task's, which has the version of its "tensorflow".
        kinds: what to measure.
    """
    if "CPU" in kinds:
        speed = measure_cpu()
        note["cpu_speed"] = list(speed.best_of(Speed(*note.get("cpu_speed", speed))))
    if "GPU" in kinds and cluster.gpus and note["tensorflow"] is not None:
        speeds, note["gpu_problem"] = _measure_gpus(cluster)
        best: Dict[str, List[float]] = note.setdefault("gpu_speeds", {})
        for device, speed in zip(cluster.gpus, speeds):
            best[device] = list(speed.best_of(Speed(*best.get(device, speed))))


def measure_cpu() -> Speed:
    """Measures one thread on the CPUs that this task may use."""
    digest, block = hashlib.blake2b(), bytes(_HASHED_BYTES)
    source, target = _blocks(_COPIED_BYTES)

    def copy() -> None:
        target[:] = source

    computed, share = _best_rate(lambda: digest.update(block), _HASHED_BYTES)
    copied, _ = _best_rate(copy, len(source))
    return Speed(computed, copied, share)


def _blocks(number: int) -> Tuple[bytes, memoryview]:
    """Returns two blocks of memory of so many bytes, or of fewer where there is no more."""
    try:
        return b"\1" * number, memoryview(bytearray(number))  # zeros would be one page for all
    except MemoryError:
        if number <= _HASHED_BYTES:
            raise
        return _blocks(number // 4)


def _best_rate(work: Callable[[], None], number: int) -> Tuple[float, float]:
    """Returns how many of these are done a second, and which part of a CPU that took."""
    work()  # memory is found when it is first touched
    rate = share = 0.0
    for _ in range(TRIES):
        began, used, done = time.perf_counter(), time.thread_time(), 0
        while time.perf_counter() - began < _TRY_SECONDS:
            work()
            done += number
        seconds = time.perf_counter() - began
        rate = max(rate, done / seconds)
        share = max(share, (time.thread_time() - used) / seconds)
    return rate, min(share, 1.0)


def _measure_gpus(cluster: Cluster) -> Tuple[List[Speed], str]:
    """Returns the speed of each GPU that TensorFlow finds, and why it cannot measure, or ""."""
    environ = {**os.environ, "TF_CPP_MIN_LOG_LEVEL": "3"}
    environ[SlurmStep.allow_growth.name] = "true"  # tasks that share one measure it together
    if cluster.gpu_decision is not None:
        apply_gpus(cluster.gpu_decision._replace(memory={}), cluster.step, environ)
    try:
        done = subprocess.run(
            GPU_PROGRAM,
            env=environ,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=_GPU_SECONDS,
            check=False,
        )
    except subprocess.TimeoutExpired:
        return [], f"TensorFlow has not measured them in {_GPU_SECONDS:.0f} s"
    except OSError as error:
        return [], f"no process could be started for TensorFlow: {error}"
    try:
        told = json.loads("".join(done.stdout.splitlines()[-1:]))
        return [Speed(*speed) for speed in told["gpus"]], ""
    except (ValueError, KeyError, TypeError):
        last = "".join(done.stderr.strip().splitlines()[-1:])
        return [], f"TensorFlow failed with status {done.returncode}: {last[:200]}"
