"""Runs scontrol and scancel: no other module runs commands of Slurm. Containers often lack them.

SLURM_JOB_ID does not always mean one job to these commands. That of an array's last task is the
array's own id: ``scancel 12`` ends all tasks, ``12_3`` one. So no function takes the id of a
`SlurmStep`: they take a `JobRef`, which `own_job` makes, or what they have returned themselves.
"""

from __future__ import annotations

import os
import re
import subprocess
import time
from collections.abc import Sequence
from typing import NewType

from slurm_resolver.slurm.hostlist import expand_hostlist
from slurm_resolver.slurm.step_variables import SlurmStep

# The id that means one job to Slurm's commands. Only what a user has typed, or another process has
# got from `own_job`, becomes one elsewhere.
JobRef = NewType("JobRef", str)
Fields = dict[str, str]  # what Slurm says of a job, a node or another thing, by name

TIMEOUT_SECONDS = 10.0
UNSET = ("", "(null)", "None", "N/A")  # how Slurm writes that something is not set
# the states of a job that has its nodes and is not being ended
RUNNING_STATES = ("RUNNING", "SIGNALING", "CONFIGURING", "RESIZING", "STOPPED", "SUSPENDED")
UNKNOWN_JOB = "Invalid job id"  # in an error of `show_job`

# scontrol quotes no value. These fields may hold spaces and text that looks like other fields, and
# each is the last one of its line.
_FREE_TEXT = (
    "JobName|Comment|AdminComment|SystemComment|Command|SubmitLine|WorkDir|Std(?:Err|In|Out)"
)
_FIELD = re.compile(rf"(?:^|\s)(?:({_FREE_TEXT})=(.*)$|([\w/:]+)=(\S*))", re.M)

# Slurm signals all processes of a step, this scontrol as well. After exec a program ignores the
# signals that the shell ignored.
_IGNORE_SIGNALS = ("/bin/sh", "-c", 'trap "" TERM USR1 USR2; exec "$0" "$@"')


def _run(*command: str, timeout: float = TIMEOUT_SECONDS) -> str:
    """Runs a command of Slurm, such as ``"scontrol", "requeue", "42"``, and returns its output.

    Raises:
        OSError: if the program is missing, fails, or does not answer within `timeout` seconds.
    """
    program = command[0]
    if timeout <= 0:
        raise OSError(f"no time is left to run {program}")
    try:
        done = subprocess.run(
            [*_IGNORE_SIGNALS, *command],
            # The user's settings must not change what this module reads.
            env={**os.environ, "SLURM_TIME_FORMAT": "standard", "LC_ALL": "C"},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=timeout,
        )
    except subprocess.TimeoutExpired:
        raise OSError(f"{program} did not answer within {timeout:g} s") from None
    if done.returncode:
        last_line = (done.stdout + done.stderr).strip().rpartition("\n")[2]
        reason = last_line or f"exit status {done.returncode}"
        raise OSError(f"{' '.join(command)}: {reason}")
    return done.stdout


def show_config(timeout: float = TIMEOUT_SECONDS) -> Fields:
    """Returns the cluster's settings by name (``scontrol show config``)."""
    shown = _run("scontrol", "show", "config", timeout=timeout)
    return dict(re.findall(r"^([A-Za-z]\w*)\s*= (.*?)[ \t]*$", shown, re.M))


def own_job(step: SlurmStep, timeout: float = TIMEOUT_SECONDS) -> tuple[JobRef, Fields]:
    """Returns the id of a step's job for Slurm's commands, and the job's fields by name."""
    # The variables of an array may be those of the job that has submitted this one.
    job = show_job(JobRef(step.job_id or ""), timeout)
    return ref_of(job), job


def show_job(job: JobRef, timeout: float = TIMEOUT_SECONDS) -> Fields:
    """Returns the fields of a Slurm job by name; of a heterogeneous job those of component 0.

    Of a job array, whose id Slurm shows all tasks for, it is the task whose own id it is, as for
    ``srun --jobid``.
    """
    jobs = _show("job", job, timeout=timeout)  # an array's tasks, or components
    return next((shown for shown in jobs if shown.get("JobId") == job), jobs[0])


def ref_of(job: Fields) -> JobRef:
    """Returns the id that means this job (`show_job`), or this task of an array, and no other."""
    if job.get("ArrayTaskId", "").isdigit():
        return JobRef(f"{job['ArrayJobId']}_{job['ArrayTaskId']}")
    return JobRef(job["JobId"])


def run_on(job: JobRef, *command: str, timeout: float) -> None:
    """Runs a command on a job, whose id is its last word, such as ``"scontrol", "requeue"``."""
    _run(*command, job, timeout=timeout)


def end_time(job: Fields) -> float | None:
    """Returns when a job (`show_job`) reaches its time limit, in seconds since 1970; or None."""
    try:
        return time.mktime(time.strptime(job.get("EndTime", ""), "%Y-%m-%dT%H:%M:%S"))
    except ValueError:
        return None


def is_preempted(job: Fields) -> bool:
    """Whether Slurm has announced to this job (`show_job`) that it preempts it."""
    return job.get("PreemptTime", "") not in UNSET


def show_nodes(field: str, nodes: str, timeout: float = TIMEOUT_SECONDS) -> dict[str, str]:
    """Returns a field of each node of a host list that has it, by the node's name.

    ``State`` is such as ``MIXED+DRAIN``; ``NodeAddr`` is the address (``scontrol getaddrs`` needs
    credentials).
    """
    return {
        node["NodeName"]: node[field]
        for node in _show("node", nodes, timeout=timeout)
        if node.get(field, "") not in UNSET
    }


def show_steps(job: Fields) -> list[Fields]:
    """Returns the fields of each running step of a job (`show_job`), of all its components."""
    ids = expand_hostlist(f"[{job['HetJobIdSet']}]") if "HetJobIdSet" in job else [ref_of(job)]
    steps = []
    for id in ids:
        try:
            steps += _show("step", id)
        except OSError as error:
            if "not found" not in str(error):
                raise
    return steps


def cancel_steps(steps: Sequence[Fields]) -> None:
    """Ends running steps (`show_steps`); without any, nothing."""
    # Without a step, scancel would end whatever the user's SCANCEL_… variables name.
    if steps:
        _run("scancel", *[step["StepId"] for step in steps])


def forbid_requeue(job: JobRef, timeout: float) -> None:
    """Forbids that Slurm or a command requeues a job."""
    _run("scontrol", "update", f"JobId={job}", "Requeue=0", timeout=timeout)


def show_preempt_mode(*what: str, timeout: float) -> str:
    """Returns the PreemptMode of a partition, or of a QOS in ``assoc_mgr``; "OFF" without any."""
    return _show(*what, timeout=timeout)[0].get("PreemptMode", "OFF")


def _show(*what: str, timeout: float = TIMEOUT_SECONDS) -> list[Fields]:
    """Returns the fields of each record that ``scontrol show`` prints.

    Of fields with the same name the first one counts, as free text comes last.
    """
    printed = _run("scontrol", "show", *what, timeout=timeout)
    return [
        {
            text_name or name: (text or value).strip()
            for text_name, text, name, value in reversed(_FIELD.findall(record))
        }
        for record in re.split(r"\n\n(?=(?:JobId|StepId|NodeName)=)", printed)
    ]
