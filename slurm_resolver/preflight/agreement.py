"""What all tasks of a step must have alike, and who differs where they do not."""

from __future__ import annotations

import contextlib
import hashlib
import importlib.metadata
import json
import socket
import sys
from typing import Any, Dict, List, Optional, Sequence

from slurm_resolver.cluster.cluster import Cluster
from slurm_resolver.rendezvous.barrier import Note
from slurm_resolver.version import __version__

# What to compare, from the cause to its effects, and how a message names it.
COMPARED = (
    ("version", "the version of slurm_resolver"),
    ("tensorflow", "the version of TensorFlow"),
    ("jobs", "the jobs (argument jobs)"),
    ("layout", "where the ranks run"),
    ("roles", "which rank plays which job (placement, het_groups)"),
    ("addresses", "the addresses (port_base, node_address)"),
)


def task_names(cluster: Cluster) -> List[str]:
    """Returns by rank how messages name a task."""
    return [f"rank {task.rank} ({task.job} {task.index} on {task.node})" for task in cluster.tasks]


def agreement_facts(cluster: Cluster) -> Note:
    """Returns what a task tells the others of itself and of the cluster that it resolved."""
    counts: Dict[str, int] = {}
    for task in cluster.tasks:
        counts[task.job] = counts.get(task.job, 0) + 1
    return {
        "version": __version__,
        "tensorflow": tensorflow_version(),
        "jobs": counts,
        "layout": _digest([(task.node, task.local_rank) for task in cluster.tasks]),
        "roles": _digest([(task.job, task.index) for task in cluster.tasks]),
        "addresses": _digest([task.address for task in cluster.tasks]),
        "host": socket.gethostname(),
        "gpus": cluster.gpus,
    }


def tensorflow_version() -> Optional[str]:
    """Returns the version of the TensorFlow that this process has, without importing it."""
    loaded = sys.modules.get("tensorflow")
    if loaded is not None:
        return str(getattr(loaded, "__version__", "unknown"))
    for name in ("tensorflow", "tensorflow-cpu", "tensorflow-rocm", "tensorflow-intel"):
        with contextlib.suppress(importlib.metadata.PackageNotFoundError):
            return importlib.metadata.version(name)
    return None


def _digest(value: Any) -> str:
    return hashlib.sha256(json.dumps(value).encode()).hexdigest()[:16]


def disagreement(notes: Dict[int, Note], key: str, names: Sequence[str]) -> str:
    """Returns who says what, where the notes differ in this key; '' where they do not.

    The fewest come first: they are the likely culprits.
    """
    values: Dict[str, List[int]] = {}
    for rank, note in sorted(notes.items()):
        values.setdefault(json.dumps(note.get(key), sort_keys=True), []).append(rank)
    if len(values) < 2:
        return ""
    ordered = sorted(values.items(), key=lambda side: len(side[1]))
    return "; ".join(f"{_some(ranks, names)}: {value}" for value, ranks in ordered[:4])


def _some(ranks: List[int], names: Sequence[str]) -> str:
    more = f" and {len(ranks) - 3} more" if len(ranks) > 3 else ""
    return ", ".join(names[rank] for rank in ranks[:3]) + more
