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
from typing import Callable, Optional, Sequence

from slurm_resolver.slurm import scontrol
from slurm_resolver.supervision.policy import is_lost
from slurm_resolver.supervision.step import say

_STEP = (  # --overlap: shares all that the node has with the training
    *("srun", "--overlap", "--nodes=1", "--ntasks=1", "--ntasks-per-node=1", "--cpus-per-task=1"),
    *("--mpi=none", "--job-name=batch-host"),
)
# srun takes the job's other variables for options, such as GPUs, which this step must not ask for.
_KEPT_VARIABLES = ("SLURM_JOB_ID", "SLURM_CONF", "SLURM_JWT", "SLURM_CLUSTERS")


class Watch:
    """The step that watches the batch file's node; it looks every `every` seconds, 0 for never."""

    def __init__(self, job_id: str, batch_host: Optional[str], requeue: bool, every: float) -> None:
        action = "requeue" if requeue else "cancel"
        self._program = [sys.executable, "-m", __name__, job_id, f"{every:g}", action]
        self._batch_host = batch_host if every else None
        self._process: Optional[subprocess.Popen[bytes]] = None

    def start(self, healthy: Sequence[str]) -> None:
        """Starts it on the last healthy node, which may be a spare one, unless it already runs."""
        others = [name for name in healthy if name != self._batch_host]
        runs = self._process is not None and self._process.poll() is None
        if runs or self._batch_host is None or not others:
            return
        self.stop()
        environ = {
            name: value
            for name, value in os.environ.items()
            if not name.startswith("SLURM") or name in _KEPT_VARIABLES
        }
        self._process = subprocess.Popen(
            [*_STEP, f"--nodelist={others[-1]}", *self._program],
            env=environ,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,  # srun reports each end, also the one that `stop` asks for
        )

    def stop(self) -> None:
        """Ends it; if it has ended by itself, a line says that this node was not watched."""
        process = self._process
        if process is None:
            return
        ended = process.poll() is not None
        process.terminate()
        with contextlib.suppress(subprocess.TimeoutExpired):
            words = process.communicate(timeout=10)[1].decode(errors="replace").strip()
            if ended:
                say(f"the step that watches this node had ended: {words}")
        process.kill()


def main(
    job_id: str, every: float, action: str, sleep: Callable[[float], None] = time.sleep
) -> None:
    """Ends the job once it has lost its batch file; Slurm ends this step together with it."""
    reported = False
    while True:
        sleep(every)
        with contextlib.suppress(OSError):  # the controller may answer the next time
            job = scontrol.show_job(job_id, timeout=60.0)
            if not is_lost(job):
                continue
            done = "requeued" if action == "requeue" else "cancelled"
            if not reported:
                reported = True
                # The job's output file, to which the lost node wrote before.
                with contextlib.suppress(OSError), open(job.get("StdOut", ""), "a") as stream:
                    stream.write(
                        f"slurm-resolver supervise: {job['BatchHost']} has failed, the node of the "
                        f"batch file: the job is {done}\n"
                    )
            command = ("scontrol", "requeue") if action == "requeue" else ("scancel",)
            scontrol.run(*command, job_id, timeout=60.0)


if __name__ == "__main__":
    main(sys.argv[1], float(sys.argv[2]), sys.argv[3])
