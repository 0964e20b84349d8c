"""Assigns roles in layouts that tests construct."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from slurm_resolver.cluster.layout import Layout, layout_from_environment
from slurm_resolver.cluster.options import ClusterOptions
from slurm_resolver.cluster.roles import Roles, assign_roles, job_counts
from slurm_resolver.slurm.step_variables import SlurmStep


def layout_of(counts: Sequence[int], distribution: str = "block") -> Layout:
    """Returns the layout of a step with these numbers of tasks on nodes n0, n1, …"""
    return layout_from_environment(
        SlurmStep(
            nodes=tuple(f"n{i}" for i in range(len(counts))),
            tasks_per_node=tuple(counts),
            distribution=distribution,
        )
    )


def assign(layout: Layout, jobs: Mapping[str, int] | None = None, **options: Any) -> Roles:
    """Returns the ranks of each job; takes the options of `resolve`."""
    return assign_roles(
        layout,
        job_counts(jobs, layout.num_tasks),
        ClusterOptions(jobs, **options),
    )


def play(layout: Layout, jobs: Mapping[str, int] | None = None, **options: Any) -> str:
    """By rank the first letter of its job, and its index: ``w0 p0 w1``."""
    names = {
        rank: f"{job[0]}{index}"
        for job, ranks in assign(layout, jobs, **options).items()
        for index, rank in enumerate(ranks)
    }
    return " ".join(names[rank] for rank in sorted(names))
