"""Each task takes the GPUs that a real Slurm has granted. The GPUs are device files."""

from __future__ import annotations

from pathlib import Path
from typing import Optional

import pytest
from by_version import expected
from slurm_cluster import SlurmCluster
from task_accounts import assert_right, run, use_nccl

# The devices of each task, by node; None if Slurm sets no variable.
Devices = list[list[Optional[str]]]
GPUS: dict[str, tuple[str, Devices]] = {
    "shared by two tasks": (
        "srun -w n8,n9 -N2 --ntasks-per-node=2 --gpus-per-node=4 TASK",
        [["0,1", "2,3"], ["0,1", "2,3"]],
    ),
    "an uneven grant": (
        "srun -w n8,n9 -N2 --ntasks-per-node=2 --gpus=7 TASK",
        [["0,1", "2,3"], ["0,1", "2"]],
    ),
    "one each, bound": (
        "srun -w n8,n9 -N2 --ntasks-per-node=2 --gpus-per-task=1 TASK",
        [["0", "1"], ["0", "1"]],
    ),
    "two tasks a GPU": (
        "srun -w n8 -n4 --gpus=2 --ntasks-per-gpu=2 TASK",
        [["0", "0", "1", "1"]],
    ),
    "bind map": (
        "srun -w n8 -N1 -n2 --gpus-per-node=4 --gpu-bind=map_gpu:2,3 TASK",
        [["2", "3"]],
    ),
    "bind closest": (
        "srun -w n8 -N1 -n2 --gpus-per-node=4 --gpu-bind=closest TASK",
        [["0,1", "2,3"]],
    ),
    "more tasks than GPUs": (
        "srun -w n8 -N1 -n4 --gpus=2 TASK",
        [["0", "0", "1", "1"]],
    ),
    "none asked for": (
        "srun -w n8,n9 -N2 -n2 TASK",
        [[None], [None]],
    ),
    "a step without any": (
        "salloc -w n8 -N1 -n2 --gpus-per-node=4 srun --gpus-per-node=0 TASK",
        [[None, None]],
    ),
    "a component without any": (
        "salloc -w n8 -n1 : -w n9 -n2 --gpus-per-node=4 srun --het-group=0,1 TASK",
        [[None], ["0,1", "2,3"]],
    ),
    "parameter servers leave theirs": (
        """srun -wn8,n9 --ntasks-per-node=3 --gpus=8 TASK --jobs '{"chief":1,"ps":2,"worker":3}'""",
        [
            ["", "", "0,1,2,3"],
            ["", "0,1", "2,3"],
        ],
    ),
}


# 22.05 names no device if several tasks share the node.
UNBOUND: dict[str, Devices] = {"22.05": [[None, None]], "23.11": [["0,1", "2,3"]]}


def taken(slurm: SlurmCluster, command: str, output: Path) -> Devices:
    """Returns the devices of each task by node; the tasks must use NCCL if each has its own."""
    lines = run(slurm, command, output)
    assert_right(lines)
    by_host: dict[str, list[str | None]] = {}
    for line in lines:
        gpus = line["cluster"]["self"]["gpus"]
        by_host.setdefault(line["host"], []).append(None if gpus is None else ",".join(gpus))
    owned = [
        (host, gpu)
        for host, tasks in by_host.items()
        for own in tasks
        if own
        for gpu in own.split(",")
    ]
    has_own = len(set(owned)) == len(owned) and all(map(all, by_host.values()))
    assert use_nccl(lines) == has_own
    return [by_host[host] for host in sorted(by_host)]


@pytest.mark.parametrize(("command", "devices"), GPUS.values(), ids=GPUS)
def test_tasks_take_the_gpus_that_slurm_granted(
    real_slurm: SlurmCluster, command: str, devices: Devices, output: Path
) -> None:
    assert taken(real_slurm, command, output) == devices


@pytest.mark.parametrize("gpus", ["--gpus-per-node=4", "--gpus-per-task=2"])
def test_tasks_that_slurm_is_not_to_bind(real_slurm: SlurmCluster, gpus: str, output: Path) -> None:
    assert taken(
        real_slurm,
        f"srun -w n8 -N1 -n2 {gpus} --gpu-bind=none TASK",
        output,
    ) == expected(UNBOUND, real_slurm.installation)
