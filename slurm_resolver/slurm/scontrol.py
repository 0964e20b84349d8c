"""Runs scontrol: only this module runs commands of Slurm. Containers often have none of them."""

from __future__ import annotations

import re
import shutil
import subprocess
from typing import Dict, Optional

TIMEOUT_SECONDS = 10.0
UNSET = ("", "(null)", "None", "N/A")  # how Slurm writes that something is not set

# Slurm signals all processes of a step, this scontrol as well. A signal that the shell ignores is
# still ignored after the shell has replaced itself with scontrol (exec).
_IGNORE_SIGNALS = ("/bin/sh", "-c", 'trap "" TERM USR1 USR2; exec "$0" "$@"')


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
    if not is_available():
        raise OSError("scontrol is not on this process's PATH")
    try:
        done = subprocess.run(
            [*_IGNORE_SIGNALS, "scontrol", *arguments],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=timeout,
        )
    except subprocess.TimeoutExpired:
        raise OSError(f"scontrol did not answer within {timeout:g} s") from None
    if done.returncode:
        lines = (done.stdout + done.stderr).strip().splitlines()
        reason = lines[-1] if lines else f"exit status {done.returncode}"
        raise OSError(f"scontrol {' '.join(arguments)}: {reason}")
    return done.stdout


def show_config(timeout: float = TIMEOUT_SECONDS) -> Dict[str, str]:
    """Returns the cluster's settings by name (``scontrol show config``)."""
    text = scontrol("show", "config", timeout=timeout)
    return _find_pairs(text, r"^([A-Za-z]\w*)\s*= (.*)$")


def show_job(job_id: str, timeout: float = TIMEOUT_SECONDS) -> Dict[str, str]:
    """Returns the fields of a Slurm job by name (``scontrol show job``).

    Of a heterogeneous job, whose components are listed one by one, those of the first.
    """
    text = scontrol("--oneliner", "show", "job", job_id, timeout=timeout)
    return _find_pairs(text.partition("\n")[0], r"(?:^|\s)([\w/:]+)=(\S*)")


def batch_script(job_id: str, timeout: float = TIMEOUT_SECONDS) -> Optional[str]:
    """Returns the text of a Slurm job's batch file, as the controller keeps it."""
    return scontrol("write", "batch_script", job_id, "-", timeout=timeout)


def _find_pairs(text: str, pattern: str) -> Dict[str, str]:
    return {name: value.strip() for name, value in re.findall(pattern, text, re.M)}
