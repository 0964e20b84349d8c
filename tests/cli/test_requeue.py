"""`slurm-resolver requeue` with stand-ins for Slurm's commands.

tests/preemption/test_requeue_on_slurm.py runs batch files that call this command on a real Slurm.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from captured import Captured
from kinds import Strings
from local_run import refused
from programs_on_path import stand_ins
from slurm_jobs import read

SCONTROL = """\
#!/bin/bash
case "$*" in
"show config") echo "SLURM_VERSION = 22.05.8" ;;
"show partition p") echo "PreemptMode=REQUEUE" ;;
"show job"*) echo "   Partition=p Requeue=1 BatchFlag=1 Restarts=0 $JOB"; [ "$JOB" ] || exit 1 ;;
*) echo "$*" >>calls ;;
esac
[ "$1" != requeue ] || kill $BATCH  # Slurm ends the batch file
"""
# The batch file; Slurm ends its commands together with it.
BATCH = f'export BATCH=$$; {sys.executable} -m slurm_resolver requeue "$0" & wait $! || exit $?'
RUNNING = "JobId=5 JobState=RUNNING"
PREEMPTED = f"{RUNNING} PreemptTime=2026-01-01T00:00:00"
ENDED = -signal.SIGTERM


@pytest.mark.parametrize(
    ("status", "job", "ends_with", "called"),
    [
        ("0", RUNNING, 0, []),
        ("75", RUNNING, ENDED, ["requeue 5"]),
        ("75", "", 75, []),  # Slurm does not answer
        ("143", RUNNING, 143, []),
        ("143", PREEMPTED, ENDED, ["requeue 5"]),
        ("1", PREEMPTED, ENDED, ["requeue 5"]),  # preempted before it saved
    ],
)
def test_when_the_job_is_requeued(
    status: str, job: str, ends_with: int, called: Strings, tmp_path: Path
) -> None:
    done = subprocess.run(
        ["bash", "-c", BATCH, status],
        cwd=tmp_path,
        env={
            **os.environ,
            "PATH": stand_ins(tmp_path, SCONTROL, "scontrol"),
            "SLURM_JOB_ID": "5",
            "JOB": job,
        },
        stderr=subprocess.DEVNULL,
        timeout=60,
    )
    assert done.returncode == ends_with
    assert read(tmp_path / "calls").splitlines() == called


def test_it_is_for_batch_files(capsys: Captured) -> None:
    assert "SLURM_JOB_ID is not set" in refused(capsys, "requeue", "75")
