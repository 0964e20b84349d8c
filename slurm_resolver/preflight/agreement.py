"""What must be the same in all tasks of a step, and which tasks differ."""

from __future__ import annotations

import contextlib
import hashlib
import importlib.metadata
import json
import socket
import sys
from typing import Any, Callable, Dict, List, Optional

from slurm_resolver.cluster.cluster import Cluster
from slurm_resolver.version import __version__

Note = Dict[str, Any]
NameOf = Callable[[int], str]

# The keys of `agreement_facts` that are compared, causes before effects, as messages name them.
COMPARED_FACTS = (
    ("version", "the version of slurm_resolver"),
    ("tensorflow", "the version of TensorFlow"),
    ("jobs", "the jobs (argument jobs)"),
    ("layout", "where the ranks run"),
    ("roles", "which rank has which job (placement, het_groups)"),
    ("addresses", "the addresses (port_base, node_address)"),
)


def agreement_facts(cluster: Cluster) -> Note:
    """Returns what a task tells the others about itself and the cluster that it resolved."""
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
    """Returns the version of the installed TensorFlow, without importing it; None without one."""
    loaded = sys.modules.get("tensorflow")
    if loaded is not None:
        return str(getattr(loaded, "__version__", "unknown"))
    for name in ("tensorflow", "tensorflow-cpu", "tensorflow-rocm", "tensorflow-intel"):
        with contextlib.suppress(importlib.metadata.PackageNotFoundError):
            return importlib.metadata.version(name)
    return None


def _digest(value: Any) -> str:
    return hashlib.sha256(json.dumps(value).encode()).hexdigest()[:16]


def find_disagreement(notes: Dict[int, Note], key: str, name_of: NameOf) -> str:
    """Returns the values of this key and the tasks that have each; '' where all have the same.

    The value of the fewest tasks comes first, as it is most likely the wrong one.
    """
    ranks_by_value: Dict[str, List[int]] = {}
    for rank, note in sorted(notes.items()):
        ranks_by_value.setdefault(json.dumps(note.get(key), sort_keys=True), []).append(rank)
    if len(ranks_by_value) < 2:
        return ""
    fewest_first = sorted(ranks_by_value.items(), key=lambda item: len(item[1]))
    return "; ".join(
        f"{_first_names(ranks, name_of)}: {value}" for value, ranks in fewest_first[:4]
    )


def _first_names(ranks: List[int], name_of: NameOf) -> str:
    more = f" and {len(ranks) - 3} more" if len(ranks) > 3 else ""
    return ", ".join(map(name_of, ranks[:3])) + more
