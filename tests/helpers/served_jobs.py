"""Runs jobs with server tasks on the real Slurm, and records how each task ends."""

from __future__ import annotations

import contextlib
import shlex
import subprocess
from pathlib import Path
from typing import Callable

from folders import helper
from slurm_cluster import SlurmCluster
from slurm_command import end_srun
from slurm_jobs import read, wait_for

# Each task leaves its errors and its exit status. An old srun may need minutes to
# end after a node was cut off, and loses what that node's task has printed.
EACH = 'ends="$TASK_OUTPUT/$SLURM_PROCID"; $PROGRAM "$@" 2> "$ends.errors"; echo $? > "$ends"'
_NAME = "served"
_SRUN_SECONDS = 5.0
NODES = [
    "n8",
    "n9",
    "n10",
    "n11",
    "n12",
]


class Job:
    """A job whose tasks run a program of this folder, with rank N on the node NODES[N]."""

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
            f"srun -J {_NAME} {where} bash -c {shlex.quote(EACH)} - {options}",
            env={
                "PROGRAM": shlex.join(helper(program)),
                "TASK_OUTPUT": str(output),
                "TF_CPP_MIN_LOG_LEVEL": "2",
                "TF_ENABLE_ONEDNN_OPTS": "0",
                **env,
            },
        )

    def await_steps(self, more: int = 3) -> None:
        """Waits until this many more steps are done."""
        wanted = self.steps() + more
        self.until(lambda: self.steps() >= wanted, 90)

    def steps(self) -> int:
        return int(read(self.output / "steps") or 0)

    def until(self, what: Callable[[], bool], seconds: float) -> None:
        """Waits until something happens; it is an error if srun ends before."""
        wait_for(lambda: what() or self.process.poll() is not None, seconds, self.explain)
        assert what(), self.explain()

    def explain(self) -> str:
        return "\n".join([f"ended: {self.ends()}", *self.end(), self.errors()])

    def kill(self, task: str, rank: int) -> None:
        pid = (self.output / f"{task}.pid").read_text()
        self.slurm.run_on(NODES[rank], f"kill -KILL {pid}")

    def ends(self) -> dict[int, int]:
        """Returns the exit statuses of the tasks that have ended, by rank."""
        found = {}
        for rank in range(self.tasks):
            with contextlib.suppress(OSError, ValueError):
                found[rank] = int((self.output / str(rank)).read_text())
        return found

    def await_end(self, seconds: float) -> tuple[str, str]:
        """Waits until all tasks have ended; returns srun's output and the tasks' errors."""
        self.until(lambda: len(self.ends()) == self.tasks, seconds)
        try:
            output, _ = self.process.communicate(timeout=_SRUN_SECONDS)
        except subprocess.TimeoutExpired:
            output, _ = self.end()
        return output, self.errors()

    def errors(self) -> str:
        """Returns what the tasks have written to standard error."""
        files = (self.output / f"{rank}.errors" for rank in range(self.tasks))
        return "".join(file.read_text(errors="replace") for file in files if file.exists())

    def end(self) -> tuple[str, str]:
        """Ends the step and its srun."""
        self.slurm.run(["scancel", f"--name={_NAME}"], status=None)
        return end_srun(self.process)
