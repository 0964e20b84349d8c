"""A tf.data service beside the training, with real TensorFlow on the real Slurm."""

from __future__ import annotations

import signal
from pathlib import Path
from typing import Callable, Dict, Iterator, List, Tuple

import pytest
from served_jobs import NODES, Job
from slurm_cluster import SlurmCluster

pytestmark = [pytest.mark.tensorflow, pytest.mark.slurm]

NAMES = ["worker-0", "data_worker-0", "dispatcher-0"]  # by rank, with three tasks
ENDED = 60.0  # seconds; a task that hangs does so for ever

Start = Callable[[int, str], Job]


@pytest.fixture
def start(real_slurm: SlurmCluster, tmp_path: Path) -> Iterator[Start]:
    started = []

    def one(tasks: int, options: str) -> Job:
        started.append(Job(real_slurm, tmp_path, "slurm_data.py", tasks, options))
        return started[-1]

    yield one
    for job in started:
        if job.process.poll() is None:
            job.end()


def numbers_read(job: Job) -> List[int]:
    files = job.output.glob("read-*")
    return sorted(int(number) for file in files for number in file.read_text().split())


@pytest.mark.newest
def test_workers_that_mirror_each_other_share_the_data(start: Start) -> None:
    job = start(5, "--numbers 64 --data-workers 2")
    _, errors = job.await_end(120)
    assert job.ends() == dict.fromkeys(range(5), 0), errors
    assert numbers_read(job) == list(range(64))
    assert "slurm_resolver:" not in errors


@pytest.mark.nightly
@pytest.mark.newest
def test_a_signal_to_the_step_ends_no_data_and_a_training_that_fails_does(start: Start) -> None:
    """As Slurm announces the end of the job: those who train then save, for as long as it takes."""
    job = start(3, "--raise")
    job.await_steps(3)
    for name in ("dispatcher-0", "data_worker-0"):
        for number in (signal.SIGUSR1, signal.SIGTERM):
            job.kill(name, NAMES.index(name), number)
    job.await_steps(100)
    (job.output / "STOP").touch()
    _, errors = job.await_end(ENDED)
    assert job.ends() == dict.fromkeys(range(3), 1), errors
    told = "worker 0 (rank 0 on n8) has failed: ValueError: these steps are enough"
    for name in ("data_worker 0 (rank 1 on n9)", "dispatcher 0 (rank 2 on n10)"):
        assert f"slurm_resolver: {name}: {told}" in errors, errors


# who is killed; what the others say
FAULTS: Dict[str, Tuple[str, str]] = {
    "the dispatcher is killed": (
        "dispatcher-0",
        "dispatcher 0 (rank 2 on n10) is lost, and the data service with it: ",
    ),
    "a data worker is killed": (
        "data_worker-0",
        "data_worker 0 (rank 1 on n9) is lost, and data with it: its process has ended",
    ),
}


@pytest.mark.newest
@pytest.mark.parametrize("fault", FAULTS)
def test_a_fault_ends_all_and_all_say_which(start: Start, fault: str) -> None:
    victim, told = FAULTS[fault]
    job = start(3, "")
    job.await_steps(3)
    job.kill(victim, NAMES.index(victim))
    _, errors = job.await_end(ENDED)
    killed = 128 + signal.SIGKILL
    assert job.ends() == {rank: killed if NAMES[rank] == victim else 1 for rank in range(3)}
    for rank, name in enumerate(NAMES):
        if name != victim:
            task = f"{name.replace('-', ' ')} (rank {rank} on {NODES[rank]})"
            assert f"slurm_resolver: {task}: {told}" in errors, errors
