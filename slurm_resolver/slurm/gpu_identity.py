"""Whether tasks of a node that are shown the same numbers are shown the same GPUs.

Where the site confines tasks to their GPUs (cgroup.conf(5), ConstrainDevices=yes), Slurm numbers
those of each task from 0, in CUDA_VISIBLE_DEVICES and in SLURM_STEP_GPUS: 0,1 may be other GPUs in
each task, as on live clusters from 22.05 to 26.05. No variable tells whether it does; the driver,
which shows a task no others, can tell which they are.
"""

from __future__ import annotations

from typing import Optional, Sequence

from slurm_resolver.slurm.gpu_variables import driver_gpu_uuids, read_visible_devices
from slurm_resolver.slurm.step import SlurmStep

_OF = " of "


def shown_gpus(step: SlurmStep) -> str:
    """Returns what a task is shown, in a form that is the same in tasks that are shown the same.

    Numbers that may be this task's own are followed by how many GPUs the step has on the node; in
    their place stand the driver's names where it can be asked.
    """
    devices = read_visible_devices(step).devices or ()
    granted = step.gpus_on_node or 0
    if devices != tuple(map(str, range(len(devices)))) or not 0 < len(devices) < granted:
        return ",".join(devices)
    uuids = driver_gpu_uuids()
    if uuids is not None and len(uuids) == len(devices):  # a cgroup hides the others
        return ",".join(sorted(uuids))
    if uuids is not None and len(uuids) >= granted:  # nothing is hidden: the numbers are the node's
        return ",".join(devices)
    return f"{','.join(devices)}{_OF}{granted}"


def find_own_numbers(shown: Sequence[str]) -> Optional[str]:
    """Returns one of the `shown_gpus` of a node's tasks that may be other GPUs in another task.

    None where they are the same: where one task has numbers that are not counted from 0, all have
    the node's.
    """
    unsure = [one for one in shown if _OF in one]
    return unsure[0] if unsure and len(shown) > 1 and not any(map(_is_of_node, shown)) else None


def _is_of_node(shown: str) -> bool:
    devices = shown.partition(_OF)[0].split(",")
    return devices[0].isdigit() and devices != list(map(str, range(len(devices))))
