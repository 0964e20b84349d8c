"""Watches the node of the batch file from another node, and ends the job when it fails.

With --no-kill, Slurm lets such a job run without a batch file until its time limit, even if it may
be requeued (22.05 and 26.05, live: JobState=RUNNING, and BatchHost is no longer in NodeList).
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence

from slurm_resolver import signals
from slurm_resolver.slurm import scontrol
from slurm_resolver.slurm.hostlist import expand_hostlist
from slurm_resolver.slurm.scontrol import Fields, JobRef
from slurm_resolver.slurm.step import SlurmStep
from slurm_resolver.supervision.step import say

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


@contextlib.contextmanager
def watched(
    step: SlurmStep,
    job_ref: JobRef,
    nodes: Sequence[str],
    requeue: bool,
    every: float,
) -> Iterator[None]:
    """Has the last of the nodes watch that of the batch file, every `every` seconds, 0 for never.

    It should be one of the training's: when it fails, the training starts again, and so does this.
    """
    others = [name for name in nodes if name != step.node_name]
    if not (every and step.node_name and others):
        yield
        return
    end = ["scontrol", "requeue"] if requeue else ["scancel"]
    process = subprocess.Popen(
        [
            "srun",
            *_OPTIONS,
            f"--nodelist={others[-1]}",
            sys.executable,
            "-m",
            __name__,
            f"{every:g}",
            job_ref,
            *end,
        ],
        env={
            name: value
            for name, value in os.environ.items()
            if not name.startswith("SLURM") or name in _KEPT_VARIABLES
        },
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,  # srun reports each end, also the one below
        text=True,
        errors="replace",
    )
    try:
        yield
    finally:
        refused = process.poll() == 1  # else a signal to all steps of the job has ended it
        process.terminate()
        with contextlib.suppress(subprocess.TimeoutExpired):
            _, words = process.communicate(timeout=10.0)
            if refused and "Node failure" not in words:  # the training ends as well
                say(f"no other node has watched this one: {words.strip()}")
        process.kill()


def main(every: float, job_ref: JobRef, *end: str) -> None:
    """Ends the job by the command `end` once it has lost its batch file, and this step with it."""
    signals.handle((signal.SIGUSR1, signal.SIGUSR2), signal.SIG_IGN)  # they are for the training
    slurm_job: Fields = {}
    while not _is_lost(slurm_job):
        time.sleep(every)
        with contextlib.suppress(OSError):  # the controller may answer the next time
            slurm_job = scontrol.show_job(job_ref, timeout=60.0)
    done = "requeued" if "requeue" in end else "cancelled"
    # The job's output file, to which the lost node wrote before.
    with contextlib.suppress(OSError), open(slurm_job.get("StdOut", ""), "a") as stream:
        stream.write(
            f"slurm-resolver supervise: {slurm_job['BatchHost']}, "
            f"the node of the batch file, has failed: the job is {done}\n"
        )
    while True:
        with contextlib.suppress(OSError):
            scontrol.run_on(job_ref, *end, timeout=60.0)
            return
        time.sleep(every)


def _is_lost(slurm_job: Fields) -> bool:
    """Whether a running job (`scontrol.show_job`) has lost the node of its batch file."""
    host = slurm_job.get("BatchHost", "")
    if slurm_job.get("JobState") != "RUNNING" or host in scontrol.UNSET:
        return False
    return host not in expand_hostlist(slurm_job["NodeList"])


if __name__ == "__main__":
    main(float(sys.argv[1]), JobRef(sys.argv[2]), *sys.argv[3:])  # which `watched` has got
