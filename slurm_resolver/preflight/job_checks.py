"""What this site's Slurm and this job's batch file decide about ending, preemption and requeue.

All of it is Slurm's own word: ``scontrol show config``, ``scontrol show job`` and the batch file as
the controller keeps it. Containers often have no scontrol, and a controller may not answer: then
there is nothing to judge, and that is said.
"""

from __future__ import annotations

import re
import subprocess
from typing import Dict, List, NamedTuple, Optional, Tuple

from slurm_resolver.slurm.step import SlurmStep

OK, WARNING, SKIPPED = "ok", "warning", "skipped"

_SECONDS = 10.0
_IDS = ("requeue", "preemption", "signal", "log")
_NULL = ("", "(null)", "None", "N/A")


class Site(NamedTuple):
    """What Slurm says: of the site, of the job ({} outside one), and the job's batch file."""

    config: Dict[str, str]
    job: Dict[str, str]
    batch_file: Optional[str]


def ask_slurm(step: SlurmStep) -> Site:
    """Asks the controller, three times at most.

    Raises:
        OSError: where scontrol is missing or does not answer; the message says which.
    """
    config = _pairs(_scontrol("show", "config"), r"^([A-Za-z]\w*)\s*= (.*)$")
    if step.job_id is None or step.imitated:
        return Site(config, {}, None)
    job = _pairs(_scontrol("show", "job", "-o", step.job_id), r"(?:^|\s)([\w/:]+)=(\S*)")
    batch_file = None
    if job.get("BatchFlag") == "1":
        batch_file = _scontrol("write", "batch_script", step.job_id, "-")
    return Site(config, job, batch_file)


def judge(step: SlurmStep) -> List[Tuple[str, str, str]]:
    """Returns id, status and detail of each check, in the form of `preflight.Result`."""
    ids = _IDS if step.job_id else _IDS[:2]  # the others are about a job's batch file
    try:
        site = ask_slurm(step)
    except OSError as error:
        return [(id, SKIPPED, str(error)) for id in ids]
    found = [_requeue(site), _preemption(site), _signal(site), _log(site, step)]
    return [(id, *result) for id, result in zip(ids, found)]


def _requeue(site: Site) -> Tuple[str, str]:
    exits = site.config.get("RequeueExit", "")
    codes = "" if exits in _NULL else f"; exit status {exits} requeues a job here (RequeueExit)"
    if not site.job:
        allowed = site.config.get("JobRequeue") == "1"
        word = "may be requeued unless they say --no-requeue" if allowed else "need --requeue"
        return OK, f"jobs {word} (JobRequeue={site.config.get('JobRequeue')}){codes}"
    number = site.job.get("JobId", "?")
    if site.job.get("BatchFlag") != "1":
        return SKIPPED, f"job {number} has no batch file, and Slurm requeues only jobs with one"
    if site.job.get("Requeue") != "1":
        return WARNING, f"job {number} may not be requeued: submit it with sbatch --requeue"
    restarts = site.job.get("Restarts", "0")
    return OK, f"job {number} may be requeued, and was {restarts} times{codes}"


def _preemption(site: Site) -> Tuple[str, str]:
    mode = site.config.get("PreemptMode", "OFF")
    wait = site.config.get("KillWait", "?")
    end = f"SIGKILL follows SIGTERM after {wait} (KillWait)"
    if mode.startswith("OFF"):
        return OK, f"jobs are not preempted here (PreemptMode={mode}); {end}"
    # 22.05 has no PreemptParameters; there it is preempt_send_user_signal among these.
    parameters = ("PreemptParameters", "SlurmctldParameters")
    early = any("send_user_signal" in site.config.get(name, "") for name in parameters)
    word = "the signal of --signal, then SIGTERM" if early else "SIGTERM, not the one of --signal"
    return OK, f"PreemptMode={mode}: a preempted job gets {word}; {end}"


def _signal(site: Site) -> Tuple[str, str]:
    if site.batch_file is None:
        return SKIPPED, "no batch file whose --signal could be read"
    options = _options(site.batch_file)
    match = re.search(r"--signal[= ]\s*(\S+)", options)
    if match is None:
        wait = site.config.get("KillWait", "?")
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


def _log(site: Site, step: SlurmStep) -> Tuple[str, str]:
    if site.batch_file is None:
        return SKIPPED, "no batch file whose output a restart could write over"
    if step.open_mode == "a" or site.config.get("JobFileAppend") == "1":
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


def _pairs(text: str, pattern: str) -> Dict[str, str]:
    return {name: value.strip() for name, value in re.findall(pattern, text, re.M)}


def _scontrol(*arguments: str) -> str:
    command = ["scontrol", *arguments]
    try:
        done = subprocess.run(
            command,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=_SECONDS,
        )
    except FileNotFoundError:
        raise OSError("there is no scontrol here") from None
    except subprocess.TimeoutExpired:
        raise OSError(f"scontrol does not answer within {_SECONDS:g} s") from None
    if done.returncode:
        said = (done.stderr or done.stdout).strip().splitlines()
        raise OSError(f"{' '.join(command)}: {said[-1] if said else f'status {done.returncode}'}")
    return done.stdout
