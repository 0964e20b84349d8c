"""What `slurm-resolver exec` gives to a program: its variables, and its arguments filled in."""

from __future__ import annotations

import re
import sys
from typing import Dict, List, Sequence

from slurm_resolver.cluster.cluster import Cluster
from slurm_resolver.cluster.contracts import Contract, placeholders
from slurm_resolver.cluster.task_gpus import apply_gpus

_PLACEHOLDER = re.compile(r"\{\{[a-z_]+\}\}|\{[a-z_]+\}")


def framework_variables(cluster: Cluster, contracts: Sequence[Contract]) -> Dict[str, str]:
    """Returns what the frameworks' programs read, and the variables that show the task its GPUs.

    Args:
        cluster: the step's.
        contracts: the frameworks, see `slurm_resolver.cluster.contracts`.
    """
    variables: Dict[str, str] = {}
    for contract in contracts:
        variables.update(cluster.variables(contract))
    gpus, own = cluster.gpu_decision, cluster.task
    if gpus is None or own is None:
        return variables
    if "torch" in contracts:
        if gpus.same_for_all:
            return variables  # its programs take the GPU with the number LOCAL_RANK of all
        shown = gpus.visible_before or ()
        if shown and own.local_rank >= len(shown):
            print(
                f"slurm-resolver exec: LOCAL_RANK is {own.local_rank}, but Slurm shows this task "
                f"{len(shown)} of the node's GPUs: a program that takes the GPU of that number "
                "fails. Ask for the GPUs by --gpus-per-node instead of --gpus-per-task or "
                "--gpu-bind.",
                file=sys.stderr,
            )
    apply_gpus(gpus, cluster.step, variables)
    return variables


def fill_in(words: Sequence[str], cluster: Cluster) -> List[str]:
    """Returns the words with {job}, {index} and so on filled in.

    ``{{rank}}`` stands for ``{rank}`` itself. Braces with anything else in them stay as they are.
    """
    if not any("{" in word for word in words):
        return list(words)  # the lists of hosts are long
    values = {}
    for name, value in placeholders(cluster.tasks, cluster.task, cluster.data_service).items():
        values[f"{{{name}}}"] = value
        values[f"{{{{{name}}}}}"] = f"{{{name}}}"
    return [_PLACEHOLDER.sub(lambda found: values.get(found[0], found[0]), word) for word in words]
