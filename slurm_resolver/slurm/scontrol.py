"""The one place that runs Slurm's commands. Containers often have none of them."""

from __future__ import annotations

import re
import shutil
import subprocess
from typing import Dict, Optional

SECONDS = 10.0
NULL = ("", "(null)", "None", "N/A")  # how Slurm writes that something is not set

# scontrol is in this step, and so gets the signals that the step gets. What a shell ignores, the
# program that it becomes ignores as well.
_IGNORING_SIGNALS = ("/bin/sh", "-c", 'trap "" TERM USR1 USR2; exec "$0" "$@"')


def is_here() -> bool:
    """Whether scontrol is on this task's PATH."""
    return shutil.which("scontrol") is not None


def scontrol(*arguments: str, timeout: float = SECONDS) -> str:
    """Returns what scontrol prints.

    Args:
        arguments: its own, such as ``"show", "config"``.
        timeout: seconds for a busy controller.

    Raises:
        OSError: where scontrol is missing, fails, or does not answer; the message says which.
    """
    if not is_here():
        raise OSError("there is no scontrol here")
    try:
        done = subprocess.run(
            [*_IGNORING_SIGNALS, "scontrol", *arguments],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=timeout,
        )
    except subprocess.TimeoutExpired:
        raise OSError(f"scontrol does not answer within {timeout:g} s") from None
    if done.returncode:
        lines = (done.stdout + done.stderr).strip().splitlines()
        reason = lines[-1] if lines else f"exit status {done.returncode}"
        raise OSError(f"scontrol {' '.join(arguments)}: {reason}")
    return done.stdout


def show_config(timeout: float = SECONDS) -> Dict[str, str]:
    """Returns the site's settings (``scontrol show config``), by name."""
    text = scontrol("show", "config", timeout=timeout)
    return _pairs(text, r"^([A-Za-z]\w*)\s*= (.*)$")


def show_job(job: str, timeout: float = SECONDS) -> Dict[str, str]:
    """Returns what Slurm tells of a job (``scontrol show job``): of several, of the first."""
    text = scontrol("--oneliner", "show", "job", job, timeout=timeout)
    return _pairs(text.partition("\n")[0], r"(?:^|\s)([\w/:]+)=(\S*)")


def batch_script(job: str, timeout: float = SECONDS) -> Optional[str]:
    """Returns a job's batch file, as the controller keeps it."""
    return scontrol("write", "batch_script", job, "-", timeout=timeout)


def _pairs(text: str, pattern: str) -> Dict[str, str]:
    return {name: value.strip() for name, value in re.findall(pattern, text, re.M)}
