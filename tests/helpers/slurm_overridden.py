"""What each task of a test step runs to meet the others through a resolver that is told more.

"tasks_per_node": the count is an argument, and Slurm's variable is not set. "hooks": a subclass
that counts ranks node by node, as another launcher might, whatever Slurm's distribution. What
came of it goes to a file of its own in the folder TASK_OUTPUT.
"""

from __future__ import annotations

import json
import os
import socket
import sys
from pathlib import Path
from typing import Dict, List

from slurm_resolver import SlurmClusterResolver

NODES = ["n9", "n10"]
PER_NODE = 2


class NodeByNode(SlurmClusterResolver):
    """Rank r runs on node r // 2."""

    def _resolve_own_rank(self) -> int:
        return NODES.index(socket.gethostname()) * PER_NODE + int(os.environ["SLURM_LOCALID"])

    def _resolve_num_tasks(self) -> int:
        return len(NODES) * PER_NODE

    def _resolve_hostlist(self) -> List[str]:
        return list(NODES)

    def _resolve_task_configuration(self) -> Dict[str, int]:
        return dict.fromkeys(NODES, PER_NODE)


def main() -> None:
    if sys.argv[1] == "tasks_per_node":
        del os.environ["SLURM_STEP_TASKS_PER_NODE"]
        resolver = SlurmClusterResolver(tasks_per_node=PER_NODE)
    else:
        resolver = NodeByNode()
    resolver.wait_until_ready(timeout=20)
    own = resolver.cluster.task
    assert own is not None
    service = resolver.cluster.service
    assert service is not None
    outcome = {
        "hostname": socket.gethostname(),
        "rank": own.rank,
        "node": own.node,
        "index": resolver.task_id,
        "meets_as": service.rank,
        "is_host": service.serves,
    }
    Path(os.environ["TASK_OUTPUT"], os.environ["SLURM_PROCID"]).write_text(json.dumps(outcome))


if __name__ == "__main__":
    main()
