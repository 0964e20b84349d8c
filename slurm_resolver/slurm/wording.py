"""What the messages about a step have in common."""

from __future__ import annotations

from typing import Sequence

from slurm_resolver.slurm.hostlist_compress import compress_hostlist
from slurm_resolver.slurm.step import SlurmStep

RESTART = (
    "These variables do not belong together: start the program again with srun, from a shell that "
    "exports none of them."
)


def step_id(step: SlurmStep) -> str:
    """Returns the step's id as Slurm writes it: ``42.0``."""
    return f"{step.job_id or '?'}.{step.step_id or '?'}"


def hosts_text(hosts: Sequence[str]) -> str:
    """Returns the hosts as a host list, the end left out if it is long."""
    text = compress_hostlist(hosts)
    return text if len(text) <= 200 else f"{text[:200]} …"


def ranks_text(ranks: Sequence[int]) -> str:
    """Returns the ranks, or the first of them and how many they are."""
    shown = ",".join(map(str, ranks[:32]))
    return shown if len(ranks) <= 32 else f"{shown},… ({len(ranks)} ranks)"
