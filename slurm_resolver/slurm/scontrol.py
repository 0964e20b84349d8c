"""Runs scontrol and scancel: no other module runs commands of Slurm. Containers often lack them."""

from __future__ import annotations

import re
import shutil
import subprocess
import time
from typing import Dict, List, Mapping, Optional

TIMEOUT_SECONDS = 10.0
_FIELD = r"(?:^|\s)([\w/:]+)=(\S*)"
UNSET = ("", "(null)", "None", "N/A")  # how Slurm writes that something is not set
# the states of a job that has its nodes and is not being ended
RUNNING_STATES = ("RUNNING", "SIGNALING", "CONFIGURING", "RESIZING", "STOPPED", "SUSPENDED")

# Slurm signals all processes of a step, this scontrol as well. A signal that the shell ignores is
# still ignored after the shell has replaced itself with scontrol (exec).
_IGNORE_SIGNALS = ("/bin/sh", "-c", 'trap "" TERM USR1 USR2; exec "$0" "$@"')


class Budget:
    """How long several commands may take together, from now on."""

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self._until = time.monotonic() + seconds

    def left(self) -> float:
        """Returns the seconds that are left for the next command.

        Raises:
            OSError: where none are.
        """
        left = self._until - time.monotonic()
        if left <= 0:
            raise OSError(f"Slurm's controller has taken the {self._seconds:g} s that it may take")
        return left


def is_available() -> bool:
    """Whether scontrol is on this process's PATH."""
    return shutil.which("scontrol") is not None


def scontrol(*arguments: str, timeout: float = TIMEOUT_SECONDS) -> str:
    """Returns what scontrol prints.

    Args:
        arguments: scontrol's arguments, such as ``"show", "config"``.
        timeout: seconds to wait for the answer of a busy controller.

    Raises:
        OSError: where scontrol is missing, fails, or does not answer; the message says which.
    """
    return _run("scontrol", *arguments, timeout=timeout)


def _run(program: str, *arguments: str, timeout: float) -> str:
    if shutil.which(program) is None:
        raise OSError(f"{program} is not on this process's PATH")
    try:
        done = subprocess.run(
            [*_IGNORE_SIGNALS, program, *arguments],
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
        raise OSError(f"{program} {' '.join(arguments)}: {reason}")
    return done.stdout


def show_config(timeout: float = TIMEOUT_SECONDS) -> Dict[str, str]:
    """Returns the cluster's settings by name (``scontrol show config``)."""
    text = scontrol("show", "config", timeout=timeout)
    return _find_pairs(text, r"^([A-Za-z]\w*)\s*= (.*)$")


def show_job(job_id: str, timeout: float = TIMEOUT_SECONDS) -> Dict[str, str]:
    """Returns the fields of a Slurm job by name (``scontrol show job``).

    A heterogeneous job has a line for each component, of which this reads the first.

    Raises:
        OSError: where the controller does not answer.
    """
    text = scontrol("--oneliner", "show", "job", job_id, timeout=timeout)
    return _find_pairs(text.strip().partition("\n")[0], _FIELD)


def requeues_failures(job: Mapping[str, str]) -> bool:
    """Whether Slurm requeues this job (`show_job`) when its batch file fails, and holds it then.

    So it does with ``sbatch --requeue=expedite``, in 25.11 and later where SlurmctldParameters has
    enable_expedited_requeue: a job whose batch file ends with a status other than 0 starts again
    only if an Epilog has failed as well, and else waits, held, until somebody releases or cancels
    it (26.05, live). A requeue by scontrol starts it at once.
    """
    return job.get("ExpeditedRequeue") == "Yes" and job.get("Requeue") == "1"


def show_partition(name: str, timeout: float = TIMEOUT_SECONDS) -> Dict[str, str]:
    """Returns the fields of a partition by name (``scontrol show partition``)."""
    text = scontrol("--oneliner", "show", "partition", name, timeout=timeout)
    return _find_pairs(text.partition("\n")[0], _FIELD)


def show_qos(name: str, timeout: float = TIMEOUT_SECONDS) -> Dict[str, str]:
    """Returns the fields of a quality of service by name, as the controller keeps them."""
    text = scontrol("show", "assoc_mgr", f"qos={name}", "flags=qos", timeout=timeout)
    return _find_pairs(text, _FIELD)


def node_addresses(nodes: str, timeout: float = TIMEOUT_SECONDS) -> Dict[str, str]:
    """Returns by node where Slurm itself reaches it, of a host list: its NodeAddr.

    ``scontrol getaddrs``, of Slurm 23.11 and later, would tell it too, but needs credentials.
    """
    found = {}
    for line in scontrol("--oneliner", "show", "node", nodes, timeout=timeout).splitlines():
        fields = _find_pairs(line, _FIELD)
        if fields.get("NodeAddr", "") not in UNSET:
            found[fields.get("NodeName", "")] = fields["NodeAddr"]
    return found


def node_states(nodes: str, timeout: float = TIMEOUT_SECONDS) -> Dict[str, str]:
    """Returns by node its state, of a host list, such as ``MIXED+DRAIN``."""
    text = scontrol("--oneliner", "show", "node", nodes, timeout=timeout)
    return dict(re.findall(r"^NodeName=(\S+) .*?\sState=(\S+)", text, re.M))


def show_steps(job_id: str, timeout: float = TIMEOUT_SECONDS) -> List[Dict[str, str]]:
    """Returns the fields of each running step of a job (``scontrol show step``); [] for none."""
    try:
        text = scontrol("--oneliner", "show", "step", job_id, timeout=timeout)
    except OSError as error:
        if "not found" in str(error):
            return []
        raise
    return [_find_pairs(line, _FIELD) for line in text.splitlines() if line.strip()]


def cancel_job(job_id: str, timeout: float = TIMEOUT_SECONDS) -> None:
    """Cancels a job (scancel)."""
    _run("scancel", job_id, timeout=timeout)


def allow_requeue(job_id: str, allowed: bool, timeout: float = TIMEOUT_SECONDS) -> None:
    """Sets whether a job may be requeued, by Slurm itself as well as by a command."""
    scontrol("update", f"JobId={job_id}", f"Requeue={int(allowed)}", timeout=timeout)


def end_batch_script(job_id: str, timeout: float = TIMEOUT_SECONDS) -> None:
    """Sends SIGTERM to the shell that runs a job's batch file, and to nothing else (scancel)."""
    _run("scancel", "--batch", "--signal=TERM", job_id, timeout=timeout)


def batch_script(job_id: str, timeout: float = TIMEOUT_SECONDS) -> Optional[str]:
    """Returns the text of a Slurm job's batch file, as the controller keeps it."""
    return scontrol("write", "batch_script", job_id, "-", timeout=timeout)


def _find_pairs(text: str, pattern: str) -> Dict[str, str]:
    return {name: value.strip() for name, value in re.findall(pattern, text, re.M)}
