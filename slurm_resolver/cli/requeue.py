"""`slurm-resolver requeue`: requeues the job of a batch file after its training."""

from __future__ import annotations

import time
from argparse import Namespace
from contextlib import suppress

from slurm_resolver.errors import LaunchError
from slurm_resolver.log import print_line
from slurm_resolver.signals import REQUEUE_STATUS
from slurm_resolver.slurm import scontrol
from slurm_resolver.slurm.step_variables import SlurmStep

DESCRIPTION = """\
For a batch file, after the training: requeues the job if the training's exit status is 75, or if it
failed while Slurm was preempting the job. `slurm-resolver sbatch --requeue` prints such a file."""

EPILOG = """\
exit status, for the batch file: STATUS if no requeue is needed; 1 if the job has already been
restarted --max-restarts times; 143 if it was cancelled, or if Slurm itself requeues it; else 75.

examples:
  srun python train.py || slurm-resolver requeue --max-restarts 10 "$?\""""


OPTIONS = {
    "--max-restarts N": "requeue the job at most N times (no limit)",
    "status STATUS": "the training's exit status",
}


def main(args: Namespace) -> int:
    """Requeues the job if necessary, and returns the batch file's exit status."""
    from slurm_resolver.preemption.exit_plan import requeue_job

    status: int = args.status
    step = SlurmStep.read()
    if not step.job_id:
        raise LaunchError("SLURM_JOB_ID is not set: run this command in a batch file")
    is_to_continue = status == REQUEUE_STATUS
    if status and not is_to_continue:
        with suppress(OSError):
            is_to_continue = scontrol.is_preempted(scontrol.own_job(step)[1])
    if not is_to_continue:
        return status
    plan = requeue_job(step, "scontrol", args.max_restarts)
    print_line(plan.message, "slurm-resolver requeue")
    time.sleep(plan.wait)  # Slurm ends the batch file in this time
    return plan.status
