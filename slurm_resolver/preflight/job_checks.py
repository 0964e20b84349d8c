"""What this site's Slurm and this job's batch file decide about ending, preemption and requeue.

All of it is Slurm's own word: ``scontrol show config``, ``scontrol show job`` and the batch file as
the controller keeps it; slurm.conf(5) tells what the settings mean. Containers often have no
scontrol, and a controller may not answer: then nothing is checked, and that is said.
"""

from __future__ import annotations

import re
from typing import Dict, List, NamedTuple, Optional, Tuple

from slurm_resolver.preflight.result import OK, SKIPPED, WARNING, Result
from slurm_resolver.slurm import scontrol
from slurm_resolver.slurm.step import SlurmStep

_IDS = ("requeue", "preemption", "signal", "log")


class JobSettings(NamedTuple):
    """What Slurm says: of the site, of the job ({} outside one), and the job's batch file."""

    config: Dict[str, str]
    job: Dict[str, str]
    batch_file: Optional[str]


def ask_slurm(step: SlurmStep, timeout: float = scontrol.TIMEOUT_SECONDS) -> JobSettings:
    """Asks the controller, three times at most, each for `timeout` seconds.

    Raises:
        OSError: where scontrol is missing or does not answer; the message says which.
    """
    config = scontrol.show_config(timeout)
    if step.job_id is None or step.simulated:
        return JobSettings(config, {}, None)
    job = scontrol.show_job(step.job_id, timeout)
    batch_file = None
    if job.get("BatchFlag") == "1":
        batch_file = scontrol.batch_script(step.job_id, timeout)
    return JobSettings(config, job, batch_file)


def check_job_settings(step: SlurmStep, timeout: float = scontrol.TIMEOUT_SECONDS) -> List[Result]:
    """Returns the results of these checks; outside a job only of those that are about the site."""
    ids = _IDS if step.job_id else _IDS[:2]
    try:
        settings = ask_slurm(step, timeout)
    except OSError as error:
        return [Result(id, SKIPPED, str(error)) for id in ids]
    found = [_requeue(settings), _preemption(settings), _signal(settings), _log(settings, step)]
    return [Result(id, *result) for id, result in zip(ids, found)]


def _requeue(settings: JobSettings) -> Tuple[str, str]:
    exits = settings.config.get("RequeueExit", "")
    codes = (
        ""
        if exits in scontrol.UNSET
        else f"; exit status {exits} requeues a job here (RequeueExit)"
    )
    if not settings.job:
        allowed = settings.config.get("JobRequeue") == "1"
        word = "may be requeued unless they say --no-requeue" if allowed else "need --requeue"
        return OK, f"jobs {word} (JobRequeue={settings.config.get('JobRequeue')}){codes}"
    number = settings.job.get("JobId", "?")
    if settings.job.get("BatchFlag") != "1":
        return SKIPPED, f"job {number} has no batch file, and Slurm requeues only jobs with one"
    if settings.job.get("Requeue") != "1":
        return WARNING, f"job {number} may not be requeued: submit it with sbatch --requeue"
    restarts = settings.job.get("Restarts", "0")
    return OK, f"job {number} may be requeued, and was {restarts} times{codes}"


def _preemption(settings: JobSettings) -> Tuple[str, str]:
    mode = settings.config.get("PreemptMode", "OFF")
    wait = settings.config.get("KillWait", "?")
    end = f"SIGKILL follows SIGTERM after {wait} (KillWait)"
    if mode.startswith("OFF"):
        return OK, f"jobs are not preempted here (PreemptMode={mode}); {end}"
    # 22.05 has no PreemptParameters; there it is preempt_send_user_signal among these.
    parameters = ("PreemptParameters", "SlurmctldParameters")
    early = any("send_user_signal" in settings.config.get(name, "") for name in parameters)
    word = "the signal of --signal, then SIGTERM" if early else "SIGTERM, not the one of --signal"
    return OK, f"PreemptMode={mode}: a preempted job gets {word}; {end}"


def _signal(settings: JobSettings) -> Tuple[str, str]:
    if settings.batch_file is None:
        return SKIPPED, "no batch file whose --signal could be read"
    options = _options(settings.batch_file)
    match = re.search(r"--signal[= ]\s*(\S+)", options)
    if match is None:
        wait = settings.config.get("KillWait", "?")
        return WARNING, (
            "the batch file has no --signal (sbatch's own options are not seen here): at the time "
            f"limit the tasks get SIGTERM, and SIGKILL {wait} later; #SBATCH --signal=USR1@120 "
            "gives them two minutes to save"
        )
    if match[1].upper().startswith("B:"):
        return WARNING, (
            f"--signal={match[1]} reaches the batch shell alone; without B: it reaches the tasks"
        )
    return OK, f"--signal={match[1]} reaches the tasks before the time limit"


def _log(settings: JobSettings, step: SlurmStep) -> Tuple[str, str]:
    if settings.batch_file is None:
        return SKIPPED, "no batch file whose output a restart could write over"
    if step.open_mode == "a" or settings.config.get("JobFileAppend") == "1":
        return OK, "a restarted job appends to its output"
    return WARNING, "a restarted job writes over its output: #SBATCH --open-mode=append keeps it"


def _options(batch_file: str) -> str:
    """The #SBATCH lines; Slurm reads them up to the first command."""
    lines = []
    for line in batch_file.splitlines():
        if line.startswith("#SBATCH"):
            lines.append(line[len("#SBATCH") :].partition(" #")[0])
        elif line.strip() and not line.startswith("#"):
            break
    return "\n".join(lines)
