"""Random steps on a real Slurm, with GPUs: every task's cluster and devices, against the truth.

The tasks only save their variables, so that a sweep of this size takes seconds; they are resolved
here. Where the variables do not tell the layout, the tasks' places are taken by threads that meet.
"""

from __future__ import annotations

import random
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Dict, List, NamedTuple, Sequence, Set

import pytest
from by_version import expected
from slurm_cluster import SlurmCluster
from task_accounts import run_and_save, truth

import slurm_resolver as sr

pytestmark = pytest.mark.slurm

LAYOUTS = 100
GPUS = 4  # of each node

# How a step may ask for GPUs: for its nodes, whose tasks share them, and so that Slurm binds each
# task to its own.
SHARED = ["--gpus-per-node={gpus}", "--gres=gpu:{gpus}"]
SINCE_22_05 = ["--gpus-per-task=1", "--gpus-per-node=4 --gpu-bind=single:1"]
BOUND = {
    "22.05": SINCE_22_05,
    "24.11": [
        *SINCE_22_05,
        *("--gpus-per-node=4 --gpu-bind=per_task:1", "--tres-per-task=gres/gpu:1"),
    ],
}
# The distributions whose order no variable tells: from 26.05 on topology may order block.
MEETS: Dict[str, Set[str]] = {"22.05": set(), "26.05": {"block"}}


class Step(NamedTuple):
    """A step: how it is started, its distributions, and whether Slurm binds its tasks to GPUs."""

    command: str
    distributions: Set[str]
    bound: bool


def random_gpus(dice: random.Random, per_node: int, bound: Sequence[str]) -> str:
    """Options that grant GPUs, or none."""
    kind = dice.choice(["none", "shared", "bound"])
    if kind == "shared":
        return dice.choice(SHARED).format(gpus=dice.randint(1, GPUS))
    return dice.choice(bound) if kind == "bound" and per_node <= GPUS else ""


def random_step(dice: random.Random, bound: Sequence[str]) -> Step:
    """A step of 1 to 5 nodes."""
    nodes = [f"n{number}" for number in sorted(dice.sample(range(8, 13), dice.randint(1, 5)))]
    words = ["srun", "-w", ",".join(nodes), f"-N{len(nodes)}"]
    per_node = dice.randint(1, 3)
    tasks = dice.randint(len(nodes), 3 * len(nodes))
    crowded = dice.randint(8 * len(nodes), 9 * len(nodes))
    even = [f"-n{len(nodes) * per_node}", f"--ntasks-per-node={per_node}"]
    overcommitted = [f"-n{crowded}", "-O"]
    tasks_of = dice.choice([even, [f"-n{tasks}"], [f"-n{tasks}", "-c2"], overcommitted])
    distribution = dice.choice(["", "block", "cyclic", "plane", "block:cyclic", "cyclic,pack"])
    if distribution == "plane":
        # Slurm 22.05 refuses planes that do not fit into a node's CPUs, or waits for ever for room.
        tasks_of = overcommitted if tasks_of is overcommitted else even
        # From 24.11 on it refuses planes with GPUs for each task.
        bound = [option for option in bound if "per-task" not in option]
        distribution = f"plane={dice.randint(1, 4 if tasks_of is overcommitted else per_node)}"
    words += tasks_of
    if distribution:
        words += ["-m", distribution]
    if len(nodes) > 2 and dice.random() < 0.3:  # the same nodes, in two components
        cut = dice.randint(1, len(nodes) - 1)
        dice.shuffle(nodes)
        return Step(
            f"salloc -w {','.join(nodes[:cut])} -N{cut} -n{cut * per_node} -m block "
            f": -w {','.join(nodes[cut:])} -N{len(nodes) - cut} --ntasks-per-node=2 -m cyclic "
            "srun --het-group=0,1",
            {"block"} if cut > 1 else set(),
            False,
        )
    gpus = random_gpus(dice, per_node if tasks_of is even else GPUS + 1, bound)
    fields = {distribution.split(":")[0].split(",")[0] or "block"} if len(nodes) > 1 else set()
    return Step(" ".join([*words, gpus]), fields, gpus in bound)


def host_of(node: str) -> str:
    """Every node has a loopback address of its own, on this machine."""
    return f"127.0.1.{int(node[1:])}"


def resolved(variables: Sequence[Dict[str, str]], meet: bool) -> List[sr.Cluster]:
    """Returns the cluster of each task; where they meet, each in a thread of its own."""
    if not meet:
        return [sr.resolve(environ=own, layout="environment") for own in variables]

    def resolve(own: Dict[str, str]) -> sr.Cluster:
        return sr.resolve(environ=own, layout="rendezvous", node_address=host_of)

    with ThreadPoolExecutor(len(variables)) as pool:
        return list(pool.map(resolve, variables))


def assert_gpus_right(shown: List[List[str]], taken: List[List[str]], bound: bool) -> None:
    """The devices of a node's tasks: those that Slurm showed each, and those that each takes."""
    if bound:  # Slurm's word
        assert taken == shown
        return
    assert all(own == shown[0] for own in shown)
    assert {device for own in taken for device in own} == set(shown[0])  # none is left out
    times = Counter(device for own in taken for device in own)
    if len(taken) <= len(shown[0]):
        assert all(taken)
        assert set(times.values()) == {1}  # none is shared
    else:
        assert all(len(own) == 1 for own in taken)
        assert max(times.values()) - min(times.values()) <= 1  # shared evenly


@pytest.mark.nightly
def test_random_layouts_are_right(real_slurm: SlurmCluster, tmp_path: Path) -> None:
    installation = real_slurm.installation
    dice = random.Random(20_26)
    bound = expected(BOUND, installation)
    unknown = expected(MEETS, installation)
    for number in range(LAYOUTS):
        folder = tmp_path / str(number)
        folder.mkdir()
        step = random_step(dice, bound)
        tasks = run_and_save(real_slurm, f"{step.command} TASK", folder)
        hosts = [tasks[rank][0] for rank in range(len(tasks))]
        meet = bool(step.distributions & unknown)
        clusters = resolved([tasks[rank][1] for rank in range(len(tasks))], meet)
        for rank, cluster in enumerate(clusters):
            assert [(task.node, task.local_rank) for task in cluster.tasks] == truth(hosts), step
            assert cluster.tasks == clusters[0].tasks, step
            assert cluster.task is not None
            assert cluster.task.rank == rank, step
        for host in set(hosts):
            here = [rank for rank in range(len(tasks)) if hosts[rank] == host]
            seen = {rank: tasks[rank][1].get("CUDA_VISIBLE_DEVICES") for rank in here}
            if None in seen.values():
                assert all(clusters[rank].gpus is None for rank in here), step
                assert "gpu" not in step.command, step
            else:
                shown = [str(seen[rank]).split(",") for rank in here]
                taken = [list(clusters[rank].gpus or ()) for rank in here]
                assert_gpus_right(shown, taken, step.bound)
