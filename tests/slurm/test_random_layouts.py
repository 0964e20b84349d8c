"""Compares every task's cluster with the real layout, in random steps on a real Slurm.

The tasks only save their variables, so that a sweep of this size takes seconds. The test resolves
the clusters. If the variables do not determine the layout, threads meet in place of the tasks.
"""

from __future__ import annotations

import random
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Dict, List, NamedTuple, Sequence, Set

import pytest
from by_version import expected
from kinds import Texts
from slurm_cluster import SlurmCluster
from task_accounts import run_and_save, truth

import slurm_resolver as sr

LAYOUTS = 60

# The distributions that need a rendezvous: from 26.05 on, topology may order block.
MEETS: Dict[str, Set[str]] = {"22.05": set(), "26.05": {"block"}}


class Step(NamedTuple):
    """A step: its command and its distributions."""

    command: str
    distributions: Set[str]


def random_step(dice: random.Random) -> Step:
    """Returns a random step of 1 to 5 nodes."""
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
        # Slurm 22.05 refuses planes that do not fit into a node's CPUs, or waits forever for room.
        tasks_of = overcommitted if tasks_of is overcommitted else even
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
        )
    fields = {distribution.split(":")[0].split(",")[0] or "block"} if len(nodes) > 1 else set()
    return Step(" ".join(words), fields)


def host_of(node: str) -> str:
    """Returns a separate loopback address of this machine for each node."""
    return f"127.0.1.{int(node[1:])}"


def resolved(variables: Sequence[Texts], meet: bool) -> List[sr.Cluster]:
    """Returns the cluster of each task. If the tasks meet, each runs in its own thread."""
    if not meet:
        return [sr.resolve(environ=own, layout="environment") for own in variables]

    def resolve(own: Texts) -> sr.Cluster:
        return sr.resolve(environ=own, layout="rendezvous", node_address=host_of)

    with ThreadPoolExecutor(len(variables)) as pool:
        return list(pool.map(resolve, variables))


@pytest.mark.nightly
def test_random_layouts_are_right(real_slurm: SlurmCluster, tmp_path: Path) -> None:
    dice = random.Random(20_26)
    unknown = expected(MEETS, real_slurm.installation)
    for number in range(LAYOUTS):
        folder = tmp_path / str(number)
        folder.mkdir()
        step = random_step(dice)
        tasks = run_and_save(real_slurm, f"{step.command} TASK", folder)
        hosts = [tasks[rank][0] for rank in range(len(tasks))]
        meet = bool(step.distributions & unknown)
        clusters = resolved([tasks[rank][1] for rank in range(len(tasks))], meet)
        for rank, cluster in enumerate(clusters):
            assert [(task.node, task.local_rank) for task in cluster.tasks] == truth(hosts), step
            assert cluster.tasks == clusters[0].tasks, step
            assert cluster.task is not None
            assert cluster.task.rank == rank, step
