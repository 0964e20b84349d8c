"""The training that a folder of checkpoints belongs to, which a file in the folder names.

A new job with the same model continues the training. Another task of a job array would continue
from weights that are not its own, and two jobs that train at once would mix theirs.
"""

from __future__ import annotations

import json
import os
import socket
from typing import NamedTuple, Optional

from slurm_resolver.errors import ResumeError
from slurm_resolver.slurm.step import SlurmStep

FILE = "slurm_resolver.owner"


class Owner(NamedTuple):
    """A process that writes checkpoints, and its job: of a task of a job array the array's."""

    process: str
    job: Optional[str] = None
    array_task: Optional[str] = None

    def __str__(self) -> str:
        job = f"job {self.job}" if self.job else "a training without Slurm"
        return f"task {self.array_task} of job array {self.job}" if self.array_task else job


def owner_of(step: SlurmStep) -> Owner:
    """Returns the owner that this process is."""
    process = f"{os.getpid()} on {socket.gethostname()}"
    return Owner(process, step.array_job_id or step.job_id, step.array_task_id)


def claim(directory: str, owner: Owner) -> None:
    """Writes the owner into the folder.

    Two tasks of an array that begin together both find no owner: one of them creates the file.

    Raises:
        ResumeError: if the folder belongs to another task of a job array.
    """
    if "://" in directory:  # there a file cannot be created by one of two
        return
    os.makedirs(directory, exist_ok=True)
    path, text = os.path.join(directory, FILE), json.dumps(owner._asdict())
    try:
        with open(path, "x", encoding="utf-8") as file:
            file.write(text)
    except FileExistsError:
        found = _read(directory)
        if found and found.array_task and owner.array_task not in (None, found.array_task):
            raise ResumeError(
                f"the checkpoints in {directory!r} are those of {found}, and this is {owner}: one "
                "would end with the other's weights. Give each task a folder of its own, such as "
                f"{os.path.join(directory, '$SLURM_ARRAY_TASK_ID')}, or remove this one to begin "
                "anew."
            ) from None
        scratch = f"{path}.{os.getpid()}"
        with open(scratch, "w", encoding="utf-8") as file:
            file.write(text)
        os.replace(scratch, path)


def check_still_owner(directory: str, owner: Owner) -> None:
    """Raises ResumeError if another process has claimed the folder since `claim`."""
    found = _read(directory)
    if found is not None and found.process != owner.process:
        raise ResumeError(
            f"{directory!r} has been taken over by {found} (process {found.process}), while "
            f"{owner} is still training: this one stops, so that they do not mix. "
            "Give each training a folder of its own."
        )


def _read(directory: str) -> Optional[Owner]:
    try:
        with open(os.path.join(directory, FILE), "rb") as file:
            return Owner(**json.loads(file.read()))
    except (OSError, ValueError, TypeError):  # such as a file that was cut off
        return None
