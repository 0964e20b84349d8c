"""By computation: how many streams of a ring leave the busiest node at once, in both orders.

In every step of TensorFlow's ring each task sends one piece to the next one. What goes to a task on
the same node does not pass the network; the others share the node's link, and the node with the
most of them sets the pace of all. Counted in the cluster that a step's variables resolve to;
nothing is measured.
"""

from __future__ import annotations

from collections import Counter
from typing import Any, Dict, List, Tuple

import report

import slurm_resolver as sr
from slurm_resolver.cluster.options import WorkerOrder

NODES = [64, 128, 256, 512, 1024, 2048, 4096]
PER_NODE = [4, 8]
ORDERS: List[WorkerOrder] = ["rank", "ring"]


def streams(nodes: int, per_node: int, distribution: str, order: WorkerOrder) -> int:
    """Returns how many tasks of the busiest node have their next one on another node."""
    environ = {
        "SLURM_PROCID": "0",
        "SLURM_JOB_ID": "42",
        "SLURM_STEP_ID": "0",
        "SLURM_DISTRIBUTION": distribution,
        "SLURM_STEP_NUM_TASKS": str(nodes * per_node),
        "SLURM_STEP_NODELIST": f"n[1-{nodes}]",
        "SLURM_STEP_TASKS_PER_NODE": f"{per_node}(x{nodes})",
    }
    tasks = sr.resolve(worker_order=order, environ=environ).tasks
    # the ring's order: tests/tensorflow/test_ring.py reads it in TensorFlow's own log
    ring = [task.node for task in sorted(tasks, key=lambda task: f"{task.job}/{task.index}")]
    following = [*ring[1:], ring[0]]
    return max(Counter(a for a, b in zip(ring, following) if a != b).values())


def main() -> None:
    """Publishes a table and a plot."""
    args = report.parser(__doc__).parse_args()
    cases = [(per_node, way) for per_node in PER_NODE for way in ("block", "cyclic")]
    rows: List[List[str]] = []
    lines: Dict[str, Tuple[List[float], List[float]]] = {}
    for nodes in NODES:
        rows.append([str(nodes)])
        for per_node, way in cases:
            counts = {order: streams(nodes, per_node, way, order) for order in ORDERS}
            rows[-1].append(f"{counts['rank'] / counts['ring']:g} ({counts['rank']} to 1)")
            assert counts["ring"] == 1
            for order, count in counts.items():
                label = f"{per_node} a node, {way}, by {order}" if order == "rank" else "ring order"
                xs, ys = lines.setdefault(label, ([], []))
                xs.append(nodes)
                ys.append(count)
    headings = ["nodes", *(f"{per_node} workers a node, {way}" for per_node, way in cases)]
    labels = ("nodes", "streams across the busiest link")

    def in_powers_of_two(axes: Any) -> None:
        axes.set_xscale("log", base=2)

    image = report.plot("streams", lines, labels, in_powers_of_two, write=args.write)
    text = f"{report.table(headings, rows)}\n\n{image}"
    report.publish("streams", text, write=args.write)


if __name__ == "__main__":
    main()
