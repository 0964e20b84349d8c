"""Watches the node of the batch file from another node, and ends the job when it fails.

With --no-kill, Slurm lets such a job run without a batch file until its time limit, even if it may
be requeued (22.05 and 26.05, live: JobState=RUNNING, and BatchHost is no longer in NodeList).
"""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import time
from collections.abc import Sequence

from slurm_resolver.slurm import scontrol
from slurm_resolver.slurm.hostlist import expand_hostlist
from slurm_resolver.slurm.scontrol import JobRef

_OPTIONS = (
    "--overlap",  # shares all that the node has with the training
    "--nodes=1",
    "--ntasks=1",
    "--ntasks-per-node=1",
    "--cpus-per-task=1",
    "--mpi=none",
    "--job-name=batch-host",
)
# srun takes the job's other variables for options, such as GPUs, which this step must not ask for.
_KEPT_VARIABLES = (
    "SLURM_JOB_ID",
    "SLURM_CONF",
    "SLURM_JWT",
    "SLURM_CLUSTERS",
)
_END_SECONDS = 10.0  # for srun to end its step
_ANSWER_SECONDS = 60.0  # for the controller


class Watch:
    """A step on another node, which looks every `every` seconds; for 0, there is none.

    When the node of the batch file has failed, it requeues or cancels the job.
    """

    _srun: subprocess.Popen[str] | None = None

    def __init__(self, every: float, requeue: bool) -> None:
        self._every = every
        self._end = ["scontrol", "requeue"] if requeue else ["scancel"]

    def start(self, job_ref: JobRef, nodes: Sequence[str]) -> None:
        """Starts the step on the last of these nodes, as it may be a spare one, unless it runs."""
        if not self._every or not nodes or (self._srun and self._srun.poll() is None):
            return
        environ = {
            name: value
            for name, value in os.environ.items()
            if not name.startswith("SLURM") or name in _KEPT_VARIABLES
        }
        self._srun = subprocess.Popen(
            [
                "srun",
                *_OPTIONS,
                f"--nodelist={nodes[-1]}",
                sys.executable,
                "-m",
                __name__,
                f"{self._every:g}",
                job_ref,
                *self._end,
            ],
            env=environ,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,  # srun reports each end, also the one of `stop`
            text=True,
            errors="replace",
        )

    def stop(self) -> str:
        """Ends the step; if it had ended before, returns what srun said about that, else ''."""
        srun = self._srun
        if not srun:
            return ""
        ended = srun.poll() is not None
        srun.terminate()
        words = ""
        with contextlib.suppress(subprocess.TimeoutExpired):
            words = srun.communicate(timeout=_END_SECONDS)[1].strip()
        srun.kill()
        return words if ended else ""


def main(every: float, job_ref: JobRef, *end: str) -> None:
    """Ends the job by the command `end` once it has lost its batch file, and this step with it."""
    while True:
        time.sleep(every)
        with contextlib.suppress(OSError):  # the controller may answer the next time
            slurm_job = scontrol.show_job(job_ref, timeout=_ANSWER_SECONDS)
            host = slurm_job.get("BatchHost", "")
            is_running = slurm_job.get("JobState") == "RUNNING" and host not in scontrol.UNSET
            if is_running and host not in expand_hostlist(slurm_job["NodeList"]):
                _tell(host, slurm_job.get("StdOut", ""), requeued="requeue" in end)
                scontrol.run_on(job_ref, *end, timeout=_ANSWER_SECONDS)
                return


def _tell(host: str, output: str, requeued: bool) -> None:
    """Writes why the job ends to its output file, to which the lost node wrote before."""
    with contextlib.suppress(OSError), open(output, "a") as stream:
        stream.write(
            f"slurm-resolver supervise: {host}, the node of the batch file, has failed: "
            f"the job is {'requeued' if requeued else 'cancelled'}\n"
        )


if __name__ == "__main__":
    main(float(sys.argv[1]), JobRef(sys.argv[2]), *sys.argv[3:])  # as `Watch` has started it
