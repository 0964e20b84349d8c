"""Compares every task's cluster with the real layout, in random steps on a real Slurm.

The steps are in tests/data/layouts.txt, so that all versions of Slurm and Python run the same ones.
The tasks only save their variables, so that a sweep of this size takes seconds. The test resolves
the clusters. If the variables do not determine the layout, threads meet in place of the tasks.
"""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from by_version import expected
from folders import DATA
from kinds import Texts
from slurm_cluster import SlurmCluster
from task_accounts import run_and_save, truth

import slurm_resolver as sr

# Which lines of layouts.txt need a rendezvous: from 26.05 on, topology may order block.
MEETS = {"22.05": "none", "26.05": "block"}


def resolved(variables: Sequence[Texts], meet: bool) -> list[sr.Cluster]:
    """Returns the cluster of each task. If the tasks meet, each runs in its own thread."""

    def resolve(own: Texts) -> sr.Cluster:
        # a separate loopback address of this machine for each node
        return sr.resolve(
            environ=own,
            layout="rendezvous" if meet else "environment",
            node_address=lambda node: f"127.0.1.{int(node[1:])}",
        )

    with ThreadPoolExecutor(len(variables)) as pool:
        return list(pool.map(resolve, variables))


@pytest.mark.nightly
def test_random_layouts_are_right(real_slurm: SlurmCluster, tmp_path: Path) -> None:
    meets = expected(MEETS, real_slurm.installation)
    for number, line in enumerate((DATA / "layouts.txt").read_text().splitlines()):
        folder = tmp_path / str(number)
        folder.mkdir()
        distribution, _, command = line.partition(" ")
        tasks = run_and_save(real_slurm, f"{command} TASK", folder)
        hosts = [host for host, _ in tasks.values()]
        clusters = resolved(
            [variables for _, variables in tasks.values()],
            distribution == meets,
        )
        for rank, cluster in enumerate(clusters):
            assert [(task.node, task.local_rank) for task in cluster.tasks] == truth(hosts), line
            assert cluster.tasks == clusters[0].tasks, line
            assert cluster.task is not None
            assert cluster.task.rank == rank, line
