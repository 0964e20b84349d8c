"""GPUs on nodes where a cgroup hides all other GPUs from a task (ConstrainDevices=yes).

Slurm then numbers the GPUs of each task from 0. The tests find the real GPUs by opening every
device, because the kernel refuses hidden ones. The devices have no driver and no hardware.
"""

from __future__ import annotations

import os
import shlex
import stat
from collections.abc import Iterator
from pathlib import Path

import pytest
from kinds import Records
from slurm_cluster import SlurmCluster
from slurm_conf import Node
from slurm_fixture import started
from slurm_installation import Installation, slurm_or_skip
from task_accounts import TASK, accounts, use_nccl

pytestmark = [
    pytest.mark.root,
    # Slurm really binds the tasks to these CPUs
    pytest.mark.skipif(len(os.sched_getaffinity(0)) < 2, reason="needs two CPUs"),
]

CGROUPS = Path("/sys/fs/cgroup/devices")
MAJOR = 241  # for local use: Linux' Documentation/admin-guide/devices.txt


GPUS = 4
SOCKETS = "Sockets=2 CoresPerSocket=1 ThreadsPerCore=1"  # required in the node's line


class Confined(SlurmCluster):
    """A Slurm whose GPUs are devices that a cgroup can hide.

    GPUs 0 and 1 are near the first socket of the node, 2 and 3 near the second.
    """

    def _write_files(self) -> None:
        super()._write_files()
        folder = self.directory / "gpu"
        lines = [
            f"NodeName={node.name} Name=gpu File={folder}/gpu[{gpus}] Cores={socket}\n"
            for node in self.nodes
            for socket, gpus in enumerate(("0-1", "2-3"))
        ]
        (self.directory / "gres.conf").write_text("".join(lines))
        for number in range(GPUS):
            path = folder / f"gpu{number}"
            path.unlink()
            os.mknod(path, 0o600 | stat.S_IFCHR, os.makedev(MAJOR, number))
        (self.directory / "cgroup.conf").write_text(
            "CgroupPlugin=cgroup/v1\nConstrainDevices=yes\n"
        )


@pytest.fixture(scope="module")
def confined(
    installation: Installation, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[SlurmCluster]:
    if not os.access(CGROUPS / "tasks", os.W_OK):
        slurm_or_skip(f"needs {CGROUPS} of cgroup v1")
    # The machine's cgroups are named after the node, so its name must be unique on this machine.
    name = f"gpu{os.getpid()}"
    directory = tmp_path_factory.mktemp("c")
    nodes = [Node(name, gpus=GPUS)]
    try:
        with started(
            Confined(
                nodes,
                directory,
                extra_conf=[
                    f"NodeName={name} NodeAddr=10.77.0.1 {SOCKETS} Gres=gpu:{GPUS}",
                    "TaskPlugin=task/affinity,task/cgroup",
                ],
                installation=installation,
            )
        ) as cluster:
            yield cluster
    finally:
        for folder, _, _ in os.walk(CGROUPS / f"slurm_{name}", topdown=False):
            os.rmdir(folder)


def account_of_gpus(
    cluster: SlurmCluster, command: str, output: Path
) -> tuple[Records, dict[int, list[int]]]:
    """Runs a command that contains STEP; returns the tasks' records and the GPUs they may open."""
    gpus = cluster.directory / "gpu"
    step = f"""{TASK}
        for number in {" ".join(map(str, range(GPUS)))}; do
            (: <{gpus}/gpu$number) 2>&1 | grep -q 'not permitted' || echo $SLURM_PROCID $number
        done"""
    command = command.replace("STEP", f"bash -c {shlex.quote(step)}")
    printed = cluster.run(
        command,
        env={"TASK_OUTPUT": str(output)},
        cwd=output.parent,
    ).stdout
    may_open: dict[int, list[int]] = {}
    for line in sorted(printed.splitlines()):
        rank, number = map(int, line.split())
        may_open.setdefault(rank, []).append(number)
    return accounts(output), may_open


# Another job holds the first two GPUs of the node.
OTHER_JOB = (
    "salloc -Q -n1 --gpus-per-node=2 env -i PATH=$PATH SLURM_CONF=$SLURM_CONF"
    " TASK_OUTPUT=$TASK_OUTPUT srun"
)
# The command that starts the tasks, and the number of GPUs of each rank.
CASES = {
    "two each": (
        "srun -n2 --gpus-per-task=2",
        [2, 2],
    ),
    "one each": (
        "srun -n2 --gpus-per-task=1",
        [1, 1],
    ),
    "a binding": (
        "srun -n2 --gpus-per-node=4 --gpu-bind=single:1",
        [1, 1],
    ),
    "a map": (
        "srun -n2 --gpus-per-node=4 --gpu-bind=map_gpu:3,1",
        [1, 1],
    ),
    "shared": (
        "srun -n2 --gpus-per-node=4",
        [2, 2],
    ),
    "shared by three": (
        "srun -n3 -O --gpus-per-node=4",
        [2, 1, 1],
    ),
    "beside another job": (
        f"{OTHER_JOB} -n2 -O --gpus-per-node=2",
        [1, 1],
    ),
    "beside another job, bound": (
        f"{OTHER_JOB} -n1 --gpus-per-task=2",
        [2],
    ),
}
# Each task's numbers start at 0. Nothing shows whether its GPUs differ from its neighbor's.
UNKNOWN_OWNERS = ["a map"]


@pytest.mark.parametrize("case", CASES)
def test_every_task_gets_its_own_gpus_and_none_anothers(
    confined: SlurmCluster, output: Path, case: str
) -> None:
    step, counts = CASES[case]
    lines, may_open = account_of_gpus(confined, f"{step} STEP", output)
    assert [line["error"] for line in lines] == [None] * len(counts)
    own = [
        [may_open[line["rank"]][int(n)] for n in line["cluster"]["self"]["gpus"]] for line in lines
    ]
    assert [len(numbers) for numbers in own] == counts
    taken = [number for numbers in own for number in numbers]
    assert len(set(taken)) == len(taken)
    assert set(taken) == {number for numbers in may_open.values() for number in numbers}
    assert use_nccl(lines) == (case not in UNKNOWN_OWNERS)
