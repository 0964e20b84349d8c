"""Whether a job will save, start again and keep its log, and whether its steps are one training.

The facts come from ``scontrol show job``, and from the batch file as the controller keeps it. The
checks are skipped if there is no scontrol, as in many containers, or if Slurm does not answer.
"""

from __future__ import annotations

import re

from slurm_resolver.preflight.result import SKIPPED, WARNING, Result, result_of
from slurm_resolver.slurm import scontrol
from slurm_resolver.slurm.step_variables import SlurmStep


def check_job(step: SlurmStep) -> list[Result]:
    """Returns the results of the checks `requeue` and `signal`; [] outside a job."""
    if not step.job_id:
        return []
    reason = f"job {step.job_label} has no batch file, and Slurm requeues only jobs with one"
    try:
        if not step.simulated:
            ref, job = scontrol.own_job(step)
            if job.get("BatchFlag") == "1":
                return _check_batch_job(
                    scontrol.batch_script(ref),
                    job.get("Requeue") == "1",
                    step.open_mode == "a" or scontrol.show_config().get("JobFileAppend") == "1",
                )
    except OSError as error:
        reason = str(error)
    return [Result(id, SKIPPED, reason) for id in ("requeue", "signal")]


def _check_batch_job(batch_file: str, may_requeue: bool, append: bool) -> list[Result]:
    # Slurm reads the #SBATCH lines up to the first command.
    head = re.split(r"^(?!#|[ \t]*$)", batch_file, maxsplit=1, flags=re.M)[0]
    options = "\n".join(re.findall(r"^#SBATCH(.*?)(?: #.*)?$", head, re.M))
    asked = re.search(r"--signal[= ]\s*(B:)?(?:SIG)?(\w+)", options)
    requeue = ""
    signal = ""
    # Nothing is wrong with a job that asks for neither.
    if asked or "--requeue" in options:
        if may_requeue and not append:
            requeue = "a requeued job overwrites its output: #SBATCH --open-mode=append keeps it"
        elif not may_requeue and "--no-requeue" not in options:
            requeue = "the job cannot be requeued after the signal to save: use sbatch --requeue"
        if not asked:
            signal = (
                "the batch file has no --signal (options of the command line cannot be seen): at "
                "the time limit the tasks get SIGTERM, and SIGKILL soon after; if the training "
                "saves on a signal, #SBATCH --signal=USR1@120 gives it two minutes"
            )
        elif asked[1] and not re.search(rf"^\s*trap\s.*\s(SIG)?{asked[2]}\b", batch_file, re.M):
            signal = f"only the batch shell gets B:{asked[2]}; without B: the tasks get it"
    return [
        result_of(
            "requeue",
            [requeue],
            f"the job {'can' if may_requeue else 'cannot'} be requeued",
            WARNING,
        ),
        result_of(
            "signal", [signal], f"the batch file asks for {asked[2] if asked else 'none'}", WARNING
        ),
    ]
