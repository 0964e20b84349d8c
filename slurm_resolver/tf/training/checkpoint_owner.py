"""The training that a folder of checkpoints belongs to, which a file in the folder names.

A new job with the same model continues the training. Another task of a job array would continue
from weights that are not its own, and two jobs that train at once would mix theirs.
"""

from __future__ import annotations

import contextlib
import os
import re
import socket

from slurm_resolver.errors import ResumeError
from slurm_resolver.slurm.step import SlurmStep

FILE = "slurm_resolver.owner"


def claim(directory: str, step: SlurmStep) -> str:
    """Writes this process into the file of the folder, and returns what it wrote.

    Two tasks of an array that begin together both find no file: one of them creates it.

    Raises:
        ResumeError: if the folder belongs to another task of a job array.
    """
    job = f"job {step.job_id}" if step.job_id else "a training without Slurm"
    if step.array_task_id:
        job = f"task {step.array_task_id} of job array {step.array_job_id}"
    owner = f"{job}, process {os.getpid()} on {socket.gethostname()}"
    if "://" in directory:  # there a file cannot be created by one of two
        return owner
    os.makedirs(directory, exist_ok=True)
    path = os.path.join(directory, FILE)
    try:
        with open(path, "x", encoding="utf-8") as file:
            file.write(owner)
    except FileExistsError:
        found = _read(directory)
        task = re.match(r"task (\S+) of", found)
        if task and step.array_task_id not in (None, task[1]):
            raise ResumeError(
                f"the checkpoints in {directory!r} are those of {found}, and this is {owner}: one "
                "would end with the other's weights. Give each task a folder of its own, such as "
                f"{os.path.join(directory, '$SLURM_ARRAY_TASK_ID')}, or remove this one to begin "
                "anew."
            ) from None
        scratch = f"{path}.{os.getpid()}"
        with open(scratch, "w", encoding="utf-8") as file:
            file.write(owner)
        os.replace(scratch, path)
    return owner


def check_still_owner(directory: str, owner: str) -> None:
    """Raises ResumeError if another process has claimed the folder since `claim`."""
    found = _read(directory)
    if found not in ("", owner):
        raise ResumeError(
            f"{directory!r} has been taken over by {found}, while {owner} is still training: it "
            "stops, so that the two do not mix. Give each training a folder of its own."
        )


def _read(directory: str) -> str:
    path = os.path.join(directory, FILE)
    with contextlib.suppress(OSError), open(path, encoding="utf-8", errors="replace") as file:
        return file.read()
    return ""
