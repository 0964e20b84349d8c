"""What becomes of the job when the node of its batch file fails.

With --no-kill Slurm lets such a job run on, without a batch file and up to its time limit, even one
that may be requeued (22.05 and 26.05, live: JobState=RUNNING, and BatchHost is no longer in
NodeList). So a small step on another node watches, and requeues or cancels such a job.
"""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import threading
import time
from typing import Callable, Mapping, Optional, Sequence

from slurm_resolver.slurm import scontrol
from slurm_resolver.slurm.hostlist import expand_hostlist
from slurm_resolver.supervision.passed_on import say

_ANSWER_SECONDS = 60.0
_STEP = (  # --overlap: shares all that the node has with the training
    *("srun", "--overlap", "--nodes=1", "--ntasks=1", "--ntasks-per-node=1", "--cpus-per-task=1"),
    *("--mpi=none", "--job-name=batch-host"),
)
# The job's other variables are options to srun, as for GPUs that this step must not ask for.
_KEPT_VARIABLES = ("SLURM_JOB_ID", "SLURM_CONF", "SLURM_JWT", "SLURM_CLUSTERS")


class Watch:
    """The step that watches the batch file's node."""

    def __init__(self, job_id: str, batch_host: Optional[str], requeue: bool, every: float) -> None:
        """Prepares it; it looks every so many seconds, and never with 0."""
        self._arguments = [job_id, "requeue" if requeue else "cancel", f"{every:g}"]
        self._batch_host = batch_host
        self._every = every
        self._process: Optional[subprocess.Popen[bytes]] = None
        self._node = ""

    def start(self, used: Sequence[str], healthy: Sequence[str]) -> None:
        """Starts it on a healthy node, if possible one that the training does not use.

        A step that already runs on a healthy node is left alone.
        """
        others = [name for name in healthy if name != self._batch_host]
        if self._every == 0 or self._batch_host is None or not others:
            return
        if self._process is not None and self._process.poll() is None and self._node in others:
            return
        self.stop()
        self._node = next((name for name in others if name not in used), others[-1])
        module = [sys.executable, "-m", "slurm_resolver.supervision.batch_host", *self._arguments]
        environ = {
            name: value
            for name, value in os.environ.items()
            if not name.startswith("SLURM") or name in _KEPT_VARIABLES
        }
        with contextlib.suppress(OSError):  # no srun: the training's own reports that
            self._process = subprocess.Popen(
                [*_STEP, f"--nodelist={self._node}", *module],
                env=environ,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.PIPE,
            )
            threading.Thread(target=self._read, args=(self._process,), daemon=True).start()

    def _read(self, process: subprocess.Popen[bytes]) -> None:
        """Reports a step that ends by itself: nobody watches this node then."""
        assert process.stderr is not None
        words = process.stderr.read().decode(errors="replace").strip().rpartition("\n")[2]
        if self._process is process:
            say([f"the step on {self._node} that watches this node has ended: {words}"])

    def stop(self) -> None:
        """Ends it, if it runs."""
        process, self._process = self._process, None
        if process is not None:
            process.terminate()
            try:
                process.wait(10)
            except subprocess.TimeoutExpired:
                process.kill()


def is_lost(job: Mapping[str, str]) -> bool:
    """Whether a running job (`scontrol.show_job`) has lost the node of its batch file."""
    host, nodelist = job.get("BatchHost", ""), job.get("NodeList", "")
    if job.get("JobState") != "RUNNING" or host in scontrol.UNSET or nodelist in scontrol.UNSET:
        return False
    return host not in expand_hostlist(nodelist)


def main(
    job_id: str, action: str, every: float, sleep: Callable[[float], None] = time.sleep
) -> None:
    """Looks every so many seconds until the job has lost its batch file, and ends the job then.

    Slurm ends this step together with the job.
    """
    done = "requeued" if action == "requeue" else "cancelled"
    reported = False
    while True:
        with contextlib.suppress(OSError):  # the controller may answer the next time
            job = scontrol.show_job(job_id, _ANSWER_SECONDS)
            if is_lost(job) and not reported:
                reported = True
                # the lost node wrote this file before
                with contextlib.suppress(OSError), open(job.get("StdOut", ""), "a") as stream:
                    stream.write(
                        f"slurm-resolver supervise: {job['BatchHost']} has failed, the node of "
                        f"the batch file: the job is {done}\n"
                    )
            if is_lost(job) and action == "requeue":
                scontrol.scontrol("requeue", job_id, timeout=_ANSWER_SECONDS)
            elif is_lost(job):
                scontrol.cancel_job(job_id, _ANSWER_SECONDS)
        sleep(every)


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], float(sys.argv[3]))
