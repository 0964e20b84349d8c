"""What each task of a step on this machine gets: --tres-per-task, --cpus-per-task, --gpus-per-task.

The three say the same thing in two ways, and srun tells the tasks all of it in SLURM_TRES_PER_TASK.
"""

from __future__ import annotations

import re
from typing import NamedTuple, Optional

from slurm_resolver.errors import GpuError, LaunchError

LARGEST_COUNT = 4096
_GPUS = re.compile(r"(?:[A-Za-z][\w.-]*:)?(\d{1,9})")
_ITEM = re.compile(
    r"(?P<cpu>cpu)[=:](?P<cpus>\d{1,9})|gres/gpu(?::[A-Za-z][\w.-]*)?(?:[=:](?P<gpus>\d{1,9}))?"
)


class TaskResources(NamedTuple):
    """What each task gets: None where nothing is said of it; and SLURM_TRES_PER_TASK."""

    cpus: Optional[int] = None
    gpus: Optional[int] = None
    text: Optional[str] = None


def gpu_count(option: str, text: str) -> int:
    """Reads the number of an option: ``2`` or ``a100:2``; here a type is not looked at.

    Raises:
        GpuError: for any other text.
    """
    match = _GPUS.fullmatch(text)
    if match is None or int(match[1]) > LARGEST_COUNT:
        raise GpuError(
            f"{option} {text!r}: expected a number of GPUs, as 2, or with a type, as a100:2"
        )
    return int(match[1])


def task_resources(
    tres_per_task: Optional[str], cpus_per_task: Optional[int], gpus_per_task: Optional[str]
) -> TaskResources:
    """Returns what the three options say together.

    The order in SLURM_TRES_PER_TASK is srun's: what the two short options say stands first, the
    CPUs before the GPUs.

    Raises:
        LaunchError: for a --tres-per-task that cannot be read or simulated, and for one that says
            what another option says too, as srun does.
    """
    cpus, gpus, text = _read(tres_per_task)
    if gpus_per_task is not None:
        if gpus is not None:
            raise _said_twice(tres_per_task, "gres/gpu", "--gpus-per-task")
        gpus = gpu_count("--gpus-per-task", gpus_per_task)
        if gpus:
            type_, colon, _ = gpus_per_task.rpartition(":")
            text = _joined(f"gres/gpu{colon}{type_}={gpus}", text)
    if cpus_per_task is not None:
        if cpus is not None:
            raise _said_twice(tres_per_task, "cpu", "--cpus-per-task")
        cpus = cpus_per_task
        text = _joined(f"cpu={cpus}", text)
    return TaskResources(cpus, gpus, text)


def _read(tres_per_task: Optional[str]) -> TaskResources:
    if tres_per_task is None:
        return TaskResources()
    text = tres_per_task.replace("gres:", "gres/")
    cpus: Optional[int] = None
    gpus: Optional[int] = None
    for item in text.split(","):
        match = _ITEM.fullmatch(item)
        if match is None:
            raise LaunchError(
                f"--tres-per-task {tres_per_task!r}: expected cpu=N and gres/gpu=N, or "
                "gres/gpu:TYPE=N, separated by commas. What else Slurm counts cannot be simulated "
                "here: leave it out; on Slurm give it to srun."
            )
        if match["cpu"] is None:
            own, earlier, least, what = int(match["gpus"] or 1), gpus, 0, "gres/gpu"
            gpus = own
        else:
            own, earlier, least, what = int(match["cpus"]), cpus, 1, "cpu"
            cpus = own
        if earlier is not None or not least <= own <= LARGEST_COUNT:
            raise LaunchError(
                f"--tres-per-task {tres_per_task!r}: expected {what} once, with a number from "
                f"{least} to {LARGEST_COUNT}"
            )
    return TaskResources(cpus, gpus, text)


def _joined(first: str, rest: Optional[str]) -> str:
    return first if rest is None else f"{first},{rest}"


def _said_twice(tres_per_task: Optional[str], what: str, option: str) -> LaunchError:
    return LaunchError(
        f"--tres-per-task {tres_per_task!r} and {option} both say {what}: expected one of them, as "
        "srun does"
    )
