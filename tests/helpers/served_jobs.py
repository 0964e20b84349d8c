"""Jobs on the real Slurm in which some tasks serve others: how each of their tasks ends."""

from __future__ import annotations

import contextlib
import shlex
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Callable, Dict, Tuple

import pytest
from folders import HELPERS
from slurm_cluster import SlurmCluster, end_srun

# Each task writes down its exit status, and when it ended.
EACH = '$BEFORE $PROGRAM "$@"; echo "$? $(date +%s.%N)" > "$TASK_OUTPUT/$SLURM_PROCID"'
NODES = ["n8", "n9", "n10", "n11", "n12"]


class Job:
    """A job whose tasks run a program of this folder, each rank on the node of its number."""

    def __init__(
        self,
        slurm: SlurmCluster,
        output: Path,
        program: str,
        tasks: int,
        options: str,
        **env: str,
    ) -> None:
        self.slurm = slurm
        self.output = output
        self.tasks = tasks
        where = f"-w {','.join(NODES[:tasks])} -N{tasks} -n{tasks}"
        self.process = slurm.popen(
            f"srun {where} bash -c {shlex.quote(EACH)} - {options}",
            env={
                "PROGRAM": shlex.join([sys.executable, str(HELPERS / program)]),
                "TASK_OUTPUT": str(output),
                "TF_CPP_MIN_LOG_LEVEL": "2",
                "TF_ENABLE_ONEDNN_OPTS": "0",
                **env,
            },
        )

    def await_steps(self, more: int = 3) -> None:
        """Returns when that many steps more have been done."""
        path = self.output / "steps"

        def done() -> int:
            return int(path.read_text()) if path.exists() else 0

        wanted = done() + more
        self.until(lambda: done() >= wanted, 90)

    def until(self, what: Callable[[], bool], seconds: float) -> None:
        deadline = time.monotonic() + seconds
        while not what():
            if self.process.poll() is not None or time.monotonic() > deadline:
                pytest.fail("\n".join(self.end()))
            time.sleep(0.05)

    def kill(self, task: str, rank: int, number: int = signal.SIGKILL) -> None:
        pid = (self.output / f"{task}.pid").read_text()
        self.slurm.run_on(NODES[rank], f"kill -{number:d} {pid}")

    def ends(self) -> Dict[int, Tuple[int, float]]:
        """By rank of those who have ended: the exit status, and when that was."""
        found = {}
        for rank in range(self.tasks):
            with contextlib.suppress(OSError, ValueError):
                status, when = (self.output / str(rank)).read_text().split()
                found[rank] = (int(status), float(when))
        return found

    def await_end(self, seconds: float) -> Tuple[str, str]:
        """Returns what the tasks wrote; all have ended within these seconds and a few of srun's."""
        try:
            return self.process.communicate(timeout=seconds + 5)
        except subprocess.TimeoutExpired:
            pytest.fail("\n".join([f"still running; ended: {self.ends()}", *self.end()]))

    def end(self) -> Tuple[str, str]:
        return end_srun(self.process)


def statuses(job: Job) -> Dict[int, int]:
    return {rank: status for rank, (status, _) in job.ends().items()}


def last_end(job: Job) -> float:
    return max(when for _, when in job.ends().values())
