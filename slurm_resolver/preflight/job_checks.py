"""Whether a job can be requeued, and keeps its log then.

The facts come from ``scontrol show job``, and from the batch file as the controller keeps it. The
check is skipped if there is no scontrol, as in many containers, or if Slurm does not answer.
"""

from __future__ import annotations

import re

from slurm_resolver.preflight.result import SKIPPED, WARNING, Result, result_of
from slurm_resolver.slurm import scontrol
from slurm_resolver.slurm.step_variables import SlurmStep


def check_job(step: SlurmStep) -> list[Result]:
    """Returns the result of the check `requeue`; [] outside a job."""
    if not step.job_id:
        return []
    reason = f"job {step.job_label} has no batch file, and Slurm requeues only jobs with one"
    try:
        if not step.simulated:
            ref, job = scontrol.own_job(step)
            if job.get("BatchFlag") == "1":
                append = scontrol.show_config().get("JobFileAppend") == "1"
                return [
                    _check_requeue(
                        scontrol.batch_script(ref),
                        job.get("Requeue") == "1",
                        append or step.open_mode == "a",
                    )
                ]
    except OSError as error:
        reason = str(error)
    return [Result("requeue", SKIPPED, reason)]


def _check_requeue(batch_file: str, may_requeue: bool, append: bool) -> Result:
    # Slurm reads the #SBATCH lines up to the first command.
    head = re.split(r"^(?!#|[ \t]*$)", batch_file, maxsplit=1, flags=re.M)[0]
    options = " ".join(re.findall(r"^#SBATCH(.*?)(?: #.*)?$", head, re.M))
    problem = ""
    # Nothing is wrong with a job that asks for neither.
    if re.search("--signal|--requeue", options):
        if may_requeue and not append:
            problem = "a requeued job overwrites its output: #SBATCH --open-mode=append keeps it"
        elif not may_requeue and "--no-requeue" not in options:
            problem = "the job cannot be requeued after the signal to save: use sbatch --requeue"
    return result_of(
        "requeue",
        [problem],
        f"the job {'can' if may_requeue else 'cannot'} be requeued",
        WARNING,
    )
