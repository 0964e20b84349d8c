"""Programs that know nothing of Slurm, and whose tasks wait in TensorFlow's `join()`, under `exec`.

Here without `--kill-on-bad-exit`: srun waits for every task.
"""

from __future__ import annotations

import shlex
import sys
from pathlib import Path
from typing import Dict

import pytest
from served_jobs import Job, last_end, statuses
from slurm_cluster import SlurmCluster

# What the kernel tells of a process depends on no Slurm.
pytestmark = [pytest.mark.slurm, pytest.mark.tensorflow, pytest.mark.newest]

EXEC = shlex.join([sys.executable, "-m", "slurm_resolver", "exec"])
BEFORE = f"{EXEC} --jobs chief=1,ps=1,worker=-1 --"
TOLD = "slurm_resolver: the chief has ended, and {} in join(): exec ends what serves"
SECONDS = 200.0  # until all have ended; one that hangs does so for ever


def test_workers_that_only_serve_end_with_the_chief(
    real_slurm: SlurmCluster, tmp_path: Path
) -> None:
    job = Job(real_slurm, tmp_path, "joined_strategy.py", 4, "0", BEFORE=BEFORE)
    _, errors = job.await_end(SECONDS)
    assert statuses(job) == dict.fromkeys(range(4), 0), errors
    assert errors.count("slurm_resolver: ") == 1
    assert TOLD.format("2 workers only wait") in errors


def test_and_with_one_that_fails(real_slurm: SlurmCluster, tmp_path: Path) -> None:
    """In a shell that waits for the program, as batch files have them."""
    shell = tmp_path / "shell"
    shell.write_text('#!/bin/sh\n"$@"\nexit $?\n')
    shell.chmod(0o755)
    before = f"{BEFORE} {shell}"
    job = Job(real_slurm, tmp_path, "joined_strategy.py", 3, "7", BEFORE=before)
    _, errors = job.await_end(SECONDS)
    assert statuses(job) == {0: 7, 1: 0, 2: 0}, errors
    assert errors.count(TOLD.format("1 worker only waits")) == 1


def test_workers_that_train_are_waited_for(real_slurm: SlurmCluster, tmp_path: Path) -> None:
    """However long a step takes, and however little it does."""
    options = "sleeps waits serves"
    job = Job(real_slurm, tmp_path, "trains_on.py", 5, options, BEFORE=BEFORE)
    _, errors = job.await_end(2 * SECONDS)
    assert statuses(job) == dict.fromkeys(range(5), 0), errors
    assert {path.stem for path in tmp_path.glob("*.ended")} == {"sleeps", "waits"}
    ends: Dict[int, float] = {rank: when for rank, (_, when) in job.ends().items()}
    assert ends[0] < min(ends[2], ends[3])  # the chief was first
    assert last_end(job) == max(ends[1], ends[4])  # who served them was last
    assert errors.count("slurm_resolver: ") == 1
    assert TOLD.format("1 worker only waits") in errors
