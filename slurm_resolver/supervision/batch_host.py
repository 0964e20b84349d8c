"""Watches the node of the batch file from another node, and ends the job when it fails.

With --no-kill, Slurm lets such a job run without a batch file until its time limit, even if it may
be requeued (22.05 and 26.05, live: JobState=RUNNING, and BatchHost is no longer in NodeList).
"""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from typing import Callable

from slurm_resolver.slurm import scontrol
from slurm_resolver.slurm.hostlist import expand_hostlist
from slurm_resolver.slurm.scontrol import Fields, JobRef
from slurm_resolver.slurm.step_variables import SlurmStep
from slurm_resolver.supervision.step import SignalRelay, say

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
_RETRY_SECONDS = 5.0


@contextlib.contextmanager
def watched(
    step: SlurmStep,
    job_ref: JobRef,
    healthy: Callable[[], Sequence[str]],
    requeue: bool,
    every: float,
    relay: SignalRelay,
) -> Iterator[None]:
    """Has another node watch that of the batch file, every `every` seconds, 0 for never.

    The last of the `healthy` nodes does it, as it may be a spare one. If its step ends, another one
    starts.
    """
    if not every:
        yield
        return
    closed = threading.Event()
    process: subprocess.Popen[str] | None = None
    words = ""

    def watch() -> None:
        nonlocal process, words
        failed = 0
        while not closed.is_set():
            others = [name for name in healthy() if name != step.node_name]
            if others:
                # The node itself may be why the last step has ended.
                node = others[-1 - failed % len(others)]
                process = _start(node, every, job_ref, requeue)
                if closed.is_set():
                    process.terminate()
                words = process.communicate()[1].strip()
                failed += 1
            closed.wait(_RETRY_SECONDS)

    thread = threading.Thread(target=watch, daemon=True)
    thread.start()
    try:
        yield
    finally:
        ended = process and process.poll() is not None
        closed.set()
        if process:
            process.terminate()
        thread.join(10.0)
        if process:
            process.kill()
        if ended and words and not relay.received:
            say(f"the step that watches this node has ended: {words}")


def _start(node: str, every: float, job_ref: JobRef, requeue: bool) -> subprocess.Popen[str]:
    """Starts `main` as a step on this node."""
    return subprocess.Popen(
        [
            "srun",
            *_OPTIONS,
            f"--nodelist={node}",
            sys.executable,
            "-m",
            __name__,
            f"{every:g}",
            job_ref,
            *(["scontrol", "requeue"] if requeue else ["scancel"]),
        ],
        env={
            name: value
            for name, value in os.environ.items()
            if not name.startswith("SLURM") or name in _KEPT_VARIABLES
        },
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,  # srun reports each end, also the one of `watched`
        text=True,
        errors="replace",
    )


def main(every: float, job_ref: JobRef, *end: str) -> None:
    """Ends the job by the command `end` once it has lost its batch file, and this step with it."""
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
