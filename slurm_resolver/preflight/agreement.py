"""What must be the same in all tasks of a step, and which tasks differ."""

from __future__ import annotations

import hashlib
import json
from typing import Any, Dict, List, Mapping

from slurm_resolver.cluster.cluster import Cluster
from slurm_resolver.preflight.keras_version import find_tensorflow_version
from slurm_resolver.preflight.result import first_names
from slurm_resolver.version import __version__

Note = Dict[str, Any]

# The keys of `agreement_facts` and their names in messages, causes before effects.
_COMPARED = {
    "version": "the version of slurm_resolver",
    "tensorflow": "the version of TensorFlow",
    "jobs": "the jobs (argument jobs)",
    "layout": "where the ranks run",
    "roles": "which rank has which job (placement, het_groups)",
    "addresses": "the addresses (port_base, node_address)",
}


def agreement_facts(cluster: Cluster) -> Note:
    """Returns what a task tells the others about its versions and the cluster that it resolved."""
    return {
        "version": __version__,
        "tensorflow": find_tensorflow_version(),
        "jobs": {job: len(ranks) for job, ranks in cluster.roles.items()},
        "layout": _digest([(task.node, task.local_rank) for task in cluster.tasks]),
        "roles": _digest([(task.job, task.index) for task in cluster.tasks]),
        "addresses": _digest([task.address for task in cluster.tasks]),
    }


def _digest(value: Any) -> str:
    return hashlib.sha256(json.dumps(value).encode()).hexdigest()[:16]


def find_disagreement(notes: Mapping[int, Note], cluster: Cluster) -> List[str]:
    """Returns the first difference between the tasks, with its values; [] if all agree.

    The value of the fewest tasks comes first, as it is most likely the wrong one.
    """
    for key, what in _COMPARED.items():
        ranks_by_value: Dict[str, List[int]] = {}
        for rank, note in sorted(notes.items()):
            ranks_by_value.setdefault(json.dumps(note[key], sort_keys=True), []).append(rank)
        if len(ranks_by_value) > 1:
            fewest_first = sorted(ranks_by_value.items(), key=lambda item: len(item[1]))[:4]
            values = [f"{first_names(ranks, cluster.name_of)}: {v}" for v, ranks in fewest_first]
            return [f"the tasks disagree on {what}: {'; '.join(values)}"]
    return []
