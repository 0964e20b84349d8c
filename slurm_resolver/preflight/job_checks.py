"""Checks whether the job can be requeued, and which signals it gets before its end.

Sources: ``scontrol show config``, ``scontrol show job`` and the batch file as the controller keeps
it; slurm.conf(5) tells what the settings mean. Containers often have no scontrol, and a controller
may not answer: then the results are "skipped", with the reason.
"""

from __future__ import annotations

import re
from typing import Dict, List, NamedTuple, Optional, Tuple

from slurm_resolver.errors import LaunchError
from slurm_resolver.preflight.result import OK, SKIPPED, WARNING, Result
from slurm_resolver.slurm import scontrol
from slurm_resolver.slurm.step import SlurmStep
from slurm_resolver.slurm.time_limit import find_signal

_CHECK_IDS = ("requeue", "preemption", "signal", "log")


class JobSettings(NamedTuple):
    """What Slurm tells about the cluster and the job.

    Attributes:
        config: the settings of the cluster.
        job: the fields of the job; {} outside a job.
        batch_file: the text of the job's batch file; None where it has none.
    """

    config: Dict[str, str]
    job: Dict[str, str]
    batch_file: Optional[str]


def ask_slurm(step: SlurmStep, timeout: float = scontrol.TIMEOUT_SECONDS) -> JobSettings:
    """Asks the controller up to three questions, and waits `timeout` seconds for each answer.

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
    """Returns the results of these checks; outside a job of those that need no job."""
    ids = _CHECK_IDS if step.job_id else _CHECK_IDS[:2]
    try:
        settings = ask_slurm(step, timeout)
    except OSError as error:
        return [Result(id, SKIPPED, str(error)) for id in ids]
    goes_on = _goes_on(settings)
    results = [
        _check_requeue(settings, goes_on),
        _check_preemption(settings),
        _check_signal(settings, goes_on),
        _check_log(settings, step, goes_on),
    ]
    return [Result(id, *result) for id, result in zip(ids, results)]


def _goes_on(settings: JobSettings) -> bool:
    """Whether the batch file asks for a job that saves when it is interrupted, and goes on.

    To any other job nothing is lost that it would need: there is nothing to warn of.
    """
    return bool(re.search(r"--(requeue|signal)\b", _sbatch_options(settings.batch_file or "")))


def _check_requeue(settings: JobSettings, goes_on: bool) -> Tuple[str, str]:
    exits = settings.config.get("RequeueExit", "")
    codes = (
        ""
        if exits in scontrol.UNSET
        else f"; exit status {exits} requeues a job here (RequeueExit)"
    )
    if not settings.job:
        allowed = settings.config.get("JobRequeue") == "1"
        rule = "may be requeued unless they say --no-requeue" if allowed else "need --requeue"
        return OK, f"jobs {rule} (JobRequeue={settings.config.get('JobRequeue')}){codes}"
    job_id = settings.job.get("JobId", "?")
    if settings.job.get("BatchFlag") != "1":
        return SKIPPED, f"job {job_id} has no batch file, and Slurm requeues only jobs with one"
    if settings.job.get("Requeue") != "1":
        asked = "--no-requeue" in _sbatch_options(settings.batch_file or "")
        detail = f"job {job_id} may not be requeued"
        if goes_on and not asked:
            return WARNING, f"{detail}, but its tasks get a signal to save: sbatch --requeue"
        return OK, f"{detail}; sbatch --requeue allows it, for a program that can go on"
    number = settings.job.get("Restarts", "0")
    restarts = "once" if number == "1" else f"{number} times"
    return (
        OK,
        f"job {job_id} may be requeued, and has been {restarts}{codes}",
    )


def _check_preemption(settings: JobSettings) -> Tuple[str, str]:
    mode = settings.config.get("PreemptMode", "OFF")
    wait = settings.config.get("KillWait", "?")
    kill = f"SIGKILL follows SIGTERM after {wait} (KillWait)"
    if mode.startswith("OFF"):
        return OK, f"jobs are not preempted here (PreemptMode={mode}); {kill}"
    # Slurm 22.05 has no PreemptParameters, but SlurmctldParameters=preempt_send_user_signal.
    parameters = ("PreemptParameters", "SlurmctldParameters")
    sends_signal = any("send_user_signal" in settings.config.get(name, "") for name in parameters)
    signals = "SIGTERM, not the signal of --signal"
    if sends_signal:
        signals = "the signal of --signal, then SIGTERM"
    return OK, f"PreemptMode={mode}: a preempted job gets {signals}; {kill}"


def _check_signal(settings: JobSettings, goes_on: bool) -> Tuple[str, str]:
    if settings.batch_file is None:
        return SKIPPED, "no batch file whose --signal could be read"
    options = _sbatch_options(settings.batch_file)
    match = re.search(r"--signal[= ]\s*(\S+)", options)
    if match is None:
        wait = settings.config.get("KillWait", "?")
        detail = (
            "the batch file has no --signal (options of the command line cannot be seen): at the "
            f"time limit the tasks get SIGTERM, and SIGKILL {wait} later"
        )
        if not goes_on:
            return OK, detail
        return WARNING, f"{detail}; #SBATCH --signal=USR1@120 gives them two minutes to save"
    if match[1].upper().startswith("B:"):
        if _has_trap(settings.batch_file, match[1][2:].partition("@")[0]):
            return OK, f"--signal={match[1]} reaches the batch file alone, which has a trap for it"
        return WARNING, (
            f"--signal={match[1]} reaches the batch shell only; without B: it reaches the tasks"
        )
    return OK, f"--signal={match[1]} reaches the tasks before the time limit"


def _has_trap(batch_file: str, name: str) -> bool:
    """Whether the batch file does something by itself when the signal of this name comes."""
    try:
        number = find_signal(name, "--signal")
    except LaunchError:
        return False
    told = rf"((SIG)?{number.name[3:]}|{int(number)})"
    return re.search(rf"^\s*trap\s.*\s{told}\b", batch_file, re.M) is not None


def _check_log(settings: JobSettings, step: SlurmStep, goes_on: bool) -> Tuple[str, str]:
    if settings.batch_file is None:
        return SKIPPED, "no batch file whose output a restart could overwrite"
    if step.open_mode == "a" or settings.config.get("JobFileAppend") == "1":
        return OK, "a restarted job appends to its output"
    if settings.job.get("Requeue") != "1":
        return OK, "the job is not started again, and its output stays"
    if not goes_on:
        return OK, "if Slurm starts the job again, as when a node fails, its output begins anew"
    return WARNING, "a restarted job overwrites its output: #SBATCH --open-mode=append keeps it"


def _sbatch_options(batch_file: str) -> str:
    """Returns the options of the #SBATCH lines, which Slurm reads up to the first command."""
    lines = []
    for line in batch_file.splitlines():
        if line.startswith("#SBATCH"):
            lines.append(line[len("#SBATCH") :].partition(" #")[0])
        elif line.strip() and not line.startswith("#"):
            break
    return "\n".join(lines)
