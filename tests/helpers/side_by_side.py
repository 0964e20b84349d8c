"""Steps on the real Slurm, one on each node at once: waiting for each in turn takes far longer."""

from __future__ import annotations

import subprocess
from pathlib import Path
from typing import Iterator, List, Sequence, Tuple

from slurm_cluster import SlurmCluster

Step = Tuple[List[str], Path]  # the words after srun, and the folder that it is started in


def run_side_by_side(
    slurm: SlurmCluster, steps: Sequence[Step]
) -> Iterator[Tuple[str, subprocess.CompletedProcess[str]]]:
    """Runs steps of one node, and yields the node and the outcome of each, in their order."""
    nodes = [node.name for node in slurm.nodes]
    for first in range(0, len(steps), len(nodes)):
        running = [
            (node, slurm.popen(["srun", "-w", node, *words], cwd=folder))
            for node, (words, folder) in zip(nodes, steps[first:])
        ]
        for node, process in running:
            output = process.communicate(timeout=180)
            yield node, subprocess.CompletedProcess(process.args, process.returncode, *output)
