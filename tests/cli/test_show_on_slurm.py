"""`slurm-resolver show` in the tasks of a real step."""

from __future__ import annotations

import re
import shlex
import sys

from slurm_cluster import SlurmCluster


def test_one_task_prints_for_all(real_slurm: SlurmCluster) -> None:
    command = f"{sys.executable} -m slurm_resolver show"
    step = "srun -w n9,n10 -N2 --ntasks-per-node=2 -m cyclic --gpus-per-node=4"
    shown = real_slurm.run(f"{step} {command}").stdout
    assert shown.count("4 tasks on 2 nodes") == 1
    assert "(this task)" in shown.splitlines()[3]
    assert re.findall(r"worker \d+ +(\S+) ", shown) == ["0,1", "2,3", "0,1", "2,3"]


def test_what_was_started_once_a_task_is_told_how_to_start_it(real_slurm: SlurmCluster) -> None:
    """Otherwise each task would be worker 0 of a separate training."""
    resolver = f"{sys.executable} -m slurm_resolver"
    lonely = f"for node in n8 n9; do srun -w $node -N1 -n1 {resolver} show & done; wait"
    done = real_slurm.run(f"salloc -Q -w n8,n9 -N2 -n2 bash -c {shlex.quote(lonely)}")
    assert done.stdout.count("worker 0") == 2
    assert done.stderr.count("has one task, which trains alone") == 2
    one = real_slurm.run(f"salloc -n4 srun -n1 {resolver} show")
    assert "worker 0" in one.stdout
    assert "slurm-resolver show: " not in one.stderr


def test_a_shell_that_outlives_its_job_is_told_what_to_unset(real_slurm: SlurmCluster) -> None:
    """As one of tmux or screen outlives the job of salloc in which it was started."""
    show = f"{sys.executable} -m slurm_resolver show"
    inside = real_slurm.run(f"salloc -Q -N2 -n2 bash -c '{show}; env'", status=0)
    left = dict(line.split("=", 1) for line in inside.stdout.splitlines() if "SLURM_" in line)
    done = real_slurm.run(show, env=left, status=2)
    for stderr in (inside.stderr, done.stderr):
        assert f"runs inside the allocation of job {left['SLURM_JOB_ID']}, but srun" in stderr
        assert 'unset "${!SLURM@}" (in bash)' in stderr
