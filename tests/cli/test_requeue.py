"""When a printed batch file requeues its job by `slurm-resolver requeue`.

Slurm's commands are stand-ins here; tests/slurm/test_requeue.py has the real ones.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import NamedTuple, Tuple

import pytest
from batch_files import printed

from slurm_resolver.cli import main

STAND_INS = {
    # the program is the word that follows the options
    "srun": 'while [ "${1%% *}" != slurm-resolver ] && [ "$1" != train ]; do shift; done\n'
    'if [ "$1" = train ]; then eval "$TRAIN"; else eval "$CHECK"; fi\n',
    "scontrol": """\
case "$*" in
"show config") echo "SLURM_VERSION = $VERSION" ;;
"show partition p") echo "PreemptMode=REQUEUE" ;;
"show job"*) echo "   Partition=p Requeue=1 BatchFlag=1 Restarts=0 $JOB"; exit "${ANSWERS:-0}" ;;
*) echo "$*" >>calls ;;
esac
[ "$1" != requeue ] || kill "$PPID"  # Slurm ends the batch file
""",
    "slurm-resolver": f'exec {sys.executable} -m slurm_resolver "$@"\n',
}
RUNNING = "JobState=RUNNING "
PREEMPTED = f"{RUNNING} PreemptTime=2026-01-01T00:00:00 "
# It trains until the batch file has ended.
SIGNAL = "kill -USR1 $BATCH; exec tail -f /dev/null --pid=$BATCH >/dev/null 2>&1"
ENDED = 143  # by SIGTERM
SERVERS = "-N 3 --ps 1"


class Case(NamedTuple):
    """What happens to a job.

    Attributes:
        train: what the training does.
        job: what Slurm says about the job.
        status: that of the batch file.
        calls: what it has Slurm do.
        check: what the checks before the training do.
        options: of `slurm-resolver sbatch --requeue`.
        version: Slurm's.
        variables: of the batch file.
    """

    train: str
    job: str
    status: int
    calls: Tuple[str, ...] = ()
    check: str = "true"
    options: str = SERVERS
    version: str = "22.05.8"
    variables: Tuple[str, ...] = ()


CASES = {
    "it trains to its end": Case("exit 0", RUNNING, 0),
    "it fails": Case("exit 143", RUNNING, 143),
    "it asks for it": Case("exit 75", RUNNING, ENDED, ("requeue 5",), options="-N 2"),
    "it fails after the saves": Case("exit 5", RUNNING, 5, options="-N 2"),
    "preempted before it saved": Case("exit 1", PREEMPTED, ENDED, ("requeue 5",), options="-N 2"),
    "the signal": Case(SIGNAL, RUNNING, ENDED, ("requeue 5",)),
    "the signal, in the checks": Case(
        "echo >trained", RUNNING, ENDED, ("requeue 5",), "kill -USR1 $BATCH"
    ),
    "the signal, and Slurm does not answer": Case(SIGNAL, "", 75, variables=("ANSWERS=1",)),
    "preempted": Case("exit 143", PREEMPTED, ENDED, ("requeue 5",)),
    "preempted in the checks": Case("echo >trained", PREEMPTED, ENDED, ("requeue 5",), "exit 143"),
    "the checks fail": Case("echo >trained", RUNNING, 1, (), "exit 1"),
    "it fails, and Slurm would hold it": Case(
        *("exit 5", f"{RUNNING} ExpeditedRequeue=Yes ", 5, ("update JobId=5 Requeue=0",)),
        version="26.05.0",
    ),
}


@pytest.mark.parametrize("name", CASES)
def test_when_the_job_is_requeued(
    name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    case = CASES[name]
    text = "export BATCH=$$\n" + printed(f"--requeue {case.options}", "train", capsys)
    for program, lines in STAND_INS.items():
        (tmp_path / program).write_text(f"#!/bin/bash\n{lines}")
        (tmp_path / program).chmod(0o755)
    environ = {
        **os.environ,
        "PATH": f"{tmp_path}:{os.environ['PATH']}",
        **{"SLURM_JOB_ID": "5", "TRAIN": case.train, "CHECK": case.check},
        **{"JOB": case.job, "VERSION": case.version},
        **dict(one.split("=") for one in case.variables),
    }
    with open(tmp_path / "errors", "wb") as errors:  # not a pipe: the step may last longer
        done = subprocess.run(
            ["bash", "-c", text], cwd=tmp_path, env=environ, stderr=errors, timeout=60
        )
    calls = tmp_path / "calls"
    called = calls.read_text().splitlines() if calls.exists() else []
    status = done.returncode if done.returncode >= 0 else 128 - done.returncode
    assert (status, called) == (case.status, list(case.calls)), (tmp_path / "errors").read_text()
    assert not (tmp_path / "trained").exists()


def test_it_is_for_batch_files(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["requeue", "75"]) == 2
    assert "SLURM_JOB_ID is not set" in capsys.readouterr().err
