"""Watches the node of the batch file from another node, and ends the job when it fails.

With --no-kill, Slurm lets such a job run without a batch file until its time limit, even if it may
be requeued (22.05 and 26.05, live: JobState=RUNNING, and BatchHost is no longer in NodeList).
"""

from __future__ import annotations

import os
from contextlib import suppress
from subprocess import DEVNULL, PIPE, Popen, TimeoutExpired

from slurm_resolver.slurm.scontrol import JobRef

# srun takes the job's other variables for options, such as GPUs, which this step must not ask for.
_KEPT_VARIABLES = (
    "SLURM_JOB_ID",
    "SLURM_CONF",
    "SLURM_JWT",
    "SLURM_CLUSTERS",
)
# Every $1 s, it looks whether job $2 still runs on the node of its batch file. Else it writes why
# the job ends into the job's output, to which that node wrote before, and runs the other words. A
# signal to all steps of the job is not for this one.
_SCRIPT = """\
trap '' USR1 USR2
field() { sed -n "s/^ *$1=//p" <<<"$job"; }
while sleep "$1"; do
    job=$(scontrol show job "$2") || continue
    host=$(field BatchHost)
    nodes=$(scontrol show hostnames "$(field NodeList)") || continue
    [[ $(field JobState) == RUNNING* && -n $host && $host != "(null)" ]] || continue
    grep -qxF "$host" <<<"$nodes" && continue
    told="slurm-resolver supervise: $host, the node of the batch file, has failed: the job is $3"
    echo "$told" >>"$(field StdOut)"
    "${@:4}" "$2" && exit
done
"""


def start_watch(job_ref: JobRef, node: str, every: float, requeue: bool) -> Popen[str]:
    """Starts a step on another node, which looks every `every` seconds, and returns its srun.

    When the node of the batch file has failed, it requeues or cancels the job.
    """
    end = ["requeued", "scontrol", "requeue"] if requeue else ["cancelled", "scancel"]
    return Popen(
        [
            "srun",
            "--overlap",  # shares all that the node has with the training
            "--nodes=1",
            "--ntasks=1",
            "--ntasks-per-node=1",
            "--cpus-per-task=1",
            "--mpi=none",
            "--job-name=batch-host",
            f"--nodelist={node}",
            "bash",
            "-c",
            _SCRIPT,
            "watch",
            f"{every:g}",
            job_ref,
            *end,
        ],
        env={
            name: value
            for name, value in os.environ.items()
            if not name.startswith("SLURM") or name in _KEPT_VARIABLES
        },
        stdin=DEVNULL,
        stdout=DEVNULL,
        stderr=PIPE,  # srun reports each end, also the one by `end_watch`
        text=True,
        errors="replace",
    )


def end_watch(srun: Popen[str]) -> str:
    """Ends the step; if it had ended before, returns what srun said about that, else ''."""
    has_ended = srun.poll() is not None
    srun.terminate()
    words = ""
    with suppress(TimeoutExpired):
        words = srun.communicate(timeout=10.0)[1].strip()
    srun.kill()
    return words if has_ended else ""
