"""With `resolver.serve()`, every task ends in time, with real TensorFlow on the real Slurm.

Slurm ends no job here: without `--kill-on-bad-exit`, srun waits for every task.
"""

from __future__ import annotations

import re
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Callable

import pytest
from captured import Patch, set_all
from served_jobs import NODES, Job
from slurm_cluster import SlurmCluster
from task_variables import TASK

import slurm_resolver as sr

# The longest time in seconds until all tasks end, after the training and after a fault. It takes
# about 5 s on an idle machine. A task that hangs never ends.
FINISHED = 30.0
FAILED = 45.0


Start = Callable[..., Job]


@pytest.fixture
def start(real_slurm: SlurmCluster, tmp_path: Path) -> Iterator[Start]:
    started = []

    def one(tasks: int, options: str, **env: str) -> Job:
        started.append(Job(real_slurm, tmp_path, "slurm_serve.py", tasks, options, **env))
        return started[-1]

    yield one
    for job in started:
        if job.process.poll() is None:
            job.end()


@pytest.mark.parametrize("options", ["", "--keras"])
def test_a_strategy_goes_on_without_a_worker_and_all_end_with_it(
    start: Start, options: str
) -> None:
    job = start(4, options)
    job.await_steps()
    job.kill("worker-1", 3)
    lost = "worker 1 (rank 3 on n11) is lost; the others continue"
    job.until(lambda: lost in job.errors(), FAILED)  # before, a new process may still take over
    job.await_steps(20)
    (job.output / "STOP").touch()
    job.await_end(FINISHED)
    assert job.ends() == {
        0: 0,
        1: 0,
        2: 0,
        3: 128 + signal.SIGKILL,
    }


LOST = "is lost, and the training needs it: its process has ended"
# the killed task and its rank, the number of tasks, their options, and the message of the others
FAULTS: dict[str, tuple[str, int, int, str, str]] = {
    "the coordinator": (
        "chief-0",
        0,
        3,
        "",
        "chief 0 (rank 0 on n8) is lost: its process has ended",
    ),
    "the second ps of Keras' fit": (
        "ps-1",
        2,
        4,
        "--ps 2 --keras",
        f"ps 1 (rank 2 on n10) {LOST}",
    ),
}


@pytest.mark.newest
@pytest.mark.parametrize("fault", FAULTS)
def test_a_killed_task_ends_all_and_all_say_which(start: Start, fault: str) -> None:
    victim, killed, tasks, options, reason = FAULTS[fault]
    job = start(tasks, options)
    job.await_steps(50)  # a server may answer before its monitor starts
    job.kill(victim, killed)
    _, errors = job.await_end(FAILED)
    ends = job.ends()
    assert ends.pop(killed) == 128 + signal.SIGKILL
    assert 0 not in ends.values()
    for rank in ends:
        if rank > 0:  # the chief's own error may come first
            assert f"(rank {rank} on {NODES[rank]}): {reason}" in errors, errors


CANNOT_SERVE: dict[str, tuple[Any, str, str]] = {
    "no ps": (None, "1", "serve() in worker 1 of a cluster with the jobs worker; expected a ps"),
    "a worker that trains": ({"ps": 1, "worker": -1}, "1", "serve() in worker 0 of a cluster"),
    "the chief": (
        {
            "chief": 1,
            "ps": 1,
            "worker": -1,
        },
        "0",
        "serve() in chief 0 of a cluster",
    ),
}


@pytest.mark.parametrize("case", CANNOT_SERVE)
def test_who_cannot_serve_is_told_who_can(case: str, monkeypatch: Patch) -> None:
    jobs, rank, message = CANNOT_SERVE[case]
    set_all(monkeypatch, {**TASK, "SLURM_PROCID": rank})
    resolver = sr.SlurmClusterResolver(jobs)
    with pytest.raises(sr.JobsError, match=re.escape(message)):
        resolver.serve()


def test_without_slurm_there_is_nobody_to_serve() -> None:
    with pytest.raises(sr.JobsError, match=r"with the jobs none; .* Start the program with srun"):
        sr.SlurmClusterResolver().serve()
