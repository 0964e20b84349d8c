"""Runs scontrol and scancel: no other module runs commands of Slurm. Containers often lack them."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import time
from collections.abc import Mapping

Fields = dict[str, str]  # what Slurm says of a job, a node or another thing, by name

TIMEOUT_SECONDS = 10.0
UNSET = ("", "(null)", "None", "N/A")  # how Slurm writes that something is not set
# the states of a job that has its nodes and is not being ended
RUNNING_STATES = ("RUNNING", "SIGNALING", "CONFIGURING", "RESIZING", "STOPPED", "SUSPENDED")

# scontrol quotes no value. These fields may hold spaces and text that looks like other fields, and
# each is the last one of its line.
_FREE_TEXT = (
    "JobName|Comment|AdminComment|SystemComment|Command|SubmitLine|WorkDir|Std(?:Err|In|Out)"
)
_FIELD = re.compile(rf"(?:^|\s)(?:({_FREE_TEXT})=(.*)$|([\w/:]+)=(\S*))", re.M)

# Slurm signals all processes of a step, this scontrol as well. After exec a program ignores the
# signals that the shell ignored.
_IGNORE_SIGNALS = ("/bin/sh", "-c", 'trap "" TERM USR1 USR2; exec "$0" "$@"')


def run(*command: str, timeout: float = TIMEOUT_SECONDS) -> str:
    """Runs a command of Slurm, such as ``"scontrol", "requeue", "42"``, and returns its output.

    Raises:
        OSError: if the program is missing, fails, or does not answer within `timeout` seconds.
    """
    program = command[0]
    if shutil.which(program) is None:
        raise OSError(f"{program} is not on this process's PATH")
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
        lines = (done.stdout + done.stderr).strip().splitlines()
        reason = lines[-1] if lines else f"exit status {done.returncode}"
        raise OSError(f"{' '.join(command)}: {reason}")
    return done.stdout


def show_config(timeout: float = TIMEOUT_SECONDS) -> Fields:
    """Returns the cluster's settings by name (``scontrol show config``)."""
    text = run("scontrol", "show", "config", timeout=timeout)
    return dict(re.findall(r"^([A-Za-z]\w*)\s*= (.*?)[ \t]*$", text, re.M))


def show_job(job_id: str, timeout: float = TIMEOUT_SECONDS) -> Fields:
    """Returns the fields of a Slurm job by name; of a heterogeneous job those of component 0."""
    return _show("job", job_id, timeout=timeout)[0]


def end_time(job: Mapping[str, str]) -> float | None:
    """Returns when a job (`show_job`) reaches its time limit, in seconds since 1970; or None."""
    try:
        return time.mktime(time.strptime(job.get("EndTime", ""), "%Y-%m-%dT%H:%M:%S"))
    except ValueError:
        return None


def is_preempted(job: Mapping[str, str]) -> bool:
    """Whether Slurm has announced to this job (`show_job`) that it preempts it."""
    return job.get("PreemptTime", "") not in UNSET


def show_partition(name: str, timeout: float) -> Fields:
    """Returns the fields of a partition by name."""
    return _show("partition", name, timeout=timeout)[0]


def show_qos(name: str, timeout: float) -> Fields:
    """Returns the fields of a quality of service by name, as the controller keeps them."""
    return _show("assoc_mgr", f"qos={name}", "flags=qos", timeout=timeout)[0]


def node_addresses(nodes: str) -> dict[str, str]:
    """Returns the NodeAddr of each node of a host list; ``scontrol getaddrs`` needs credentials."""
    return {
        node["NodeName"]: node["NodeAddr"]
        for node in _show("node", nodes)
        if node.get("NodeAddr", "") not in UNSET
    }


def node_states(nodes: str, timeout: float) -> dict[str, str]:
    """Returns the state of each node of a host list, such as ``MIXED+DRAIN``."""
    return {
        node["NodeName"]: node["State"]
        for node in _show("node", nodes, timeout=timeout)
        if "State" in node
    }


def show_steps(job_id: str) -> list[Fields]:
    """Returns the fields of each running step of a job; [] for none."""
    try:
        return _show("step", job_id)
    except OSError as error:
        if "not found" in str(error):
            return []
        raise


def forbid_requeue(job_id: str, timeout: float) -> None:
    """Forbids that Slurm or a command requeues a job."""
    run("scontrol", "update", f"JobId={job_id}", "Requeue=0", timeout=timeout)


def batch_script(job_id: str) -> str:
    """Returns the text of a Slurm job's batch file, as the controller keeps it."""
    return run("scontrol", "write", "batch_script", job_id, "-")


def _show(*what: str, timeout: float = TIMEOUT_SECONDS) -> list[Fields]:
    """Returns the fields of each record that ``scontrol show`` prints.

    Of fields with the same name the first one counts, as free text comes last.
    """
    records = []
    printed = run("scontrol", "show", *what, timeout=timeout)
    for record in re.split(r"\n\n(?=(?:JobId|StepId|NodeName)=)", printed):
        fields: Fields = {}
        for text_name, text, name, value in _FIELD.findall(record):
            fields.setdefault(text_name or name, (text or value).strip())
        records.append(fields)
    return records
