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
from collections.abc import Iterator, Sequence

from slurm_resolver.slurm import scontrol
from slurm_resolver.slurm.scontrol import JobRef
from slurm_resolver.slurm.step import SlurmStep
from slurm_resolver.supervision.policy import is_lost
from slurm_resolver.supervision.step import say

_STEP = (  # --overlap: shares all that the node has with the training
    "srun",
    "--overlap",
    "--nodes=1",
    "--ntasks=1",
    "--ntasks-per-node=1",
    "--cpus-per-task=1",
    "--mpi=none",
    "--job-name=batch-host",
)
# srun takes the job's other variables for options, such as GPUs, which this step must not ask for.
_KEPT_VARIABLES = ("SLURM_JOB_ID", "SLURM_CONF", "SLURM_JWT", "SLURM_CLUSTERS")


@contextlib.contextmanager
def watched(
    step: SlurmStep, job: JobRef, nodes: Sequence[str], requeue: bool, every: float
) -> Iterator[None]:
    """Has one of the nodes watch the node of the batch file, every `every` seconds, 0 for never.

    The last of the nodes does it, as it may be a spare one.
    """
    others = [name for name in nodes if name != step.node_name]
    if step.node_name is None or not others or not every:
        yield
        return
    environ = {
        name: value
        for name, value in os.environ.items()
        if not name.startswith("SLURM") or name in _KEPT_VARIABLES
    }
    end = ["scontrol", "requeue"] if requeue else ["scancel"]
    program = [sys.executable, "-m", __name__, f"{every:g}", job, *end]
    process = subprocess.Popen(
        [*_STEP, f"--nodelist={others[-1]}", *program],
        env=environ,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,  # srun reports each end, also the one below
        text=True,
        errors="replace",
    )
    try:
        yield
    finally:
        ended = process.poll() is not None
        process.terminate()
        with contextlib.suppress(subprocess.TimeoutExpired):
            words = process.communicate(timeout=10)[1].strip()
            if ended:
                say(f"the step that watches this node had ended: {words}")
        process.kill()


def main(every: float, job_id: str, *end: str) -> None:
    """Ends the job by the command `end` once it has lost its batch file, and this step with it."""
    job = {"BatchHost": "", "StdOut": ""}
    while not is_lost(job):
        time.sleep(every)
        with contextlib.suppress(OSError):  # the controller may answer the next time
            job = scontrol.show_job(job_id, timeout=60.0)
    done = "requeued" if "requeue" in end else "cancelled"
    # The job's output file, to which the lost node wrote before.
    with contextlib.suppress(OSError), open(job.get("StdOut", ""), "a") as stream:
        stream.write(
            f"slurm-resolver supervise: {job['BatchHost']} has failed, the node of the batch file: "
            f"the job is {done}\n"
        )
    while True:
        with contextlib.suppress(OSError):
            scontrol.run_on(JobRef(job_id), *end, timeout=60.0)  # which `watched` has got
            return
        time.sleep(every)


if __name__ == "__main__":
    main(float(sys.argv[1]), *sys.argv[2:])
