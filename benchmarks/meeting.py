"""How long the tasks of a step take to meet, simulated as threads on one machine.

Told is the time of a meeting that finds a layout, and its ratio to that of the first size, both
measured in this run.
"""

from __future__ import annotations

import resource
import socket
import threading
import time
from typing import List

import report

from slurm_resolver.cluster.layout import Layout
from slurm_resolver.cluster.layout_exchange import exchange_layout
from slurm_resolver.slurm.hostlist_compress import compress_hostlist
from slurm_resolver.slurm.step import SlurmStep

PER_NODE = 4


def step(rank: int, tasks: int, port: int) -> SlurmStep:
    """A task of a step whose ranks run on the nodes in an order that no variable tells."""
    nodes = tasks // PER_NODE
    node = (rank * 7919) % nodes  # a prime: every node gets its ranks, in no simple order
    names = [f"n{i}" for i in range(nodes)]
    return SlurmStep.read(
        {
            "SLURM_PROCID": str(rank),
            "SLURM_LOCALID": str(rank // nodes),
            "SLURM_NODEID": str(node),
            "SLURMD_NODENAME": names[node],
            "SLURM_JOB_ID": "1",
            "SLURM_STEP_ID": "0",
            "SLURM_STEP_NODELIST": compress_hostlist(names),
            "SLURM_STEP_TASKS_PER_NODE": f"{PER_NODE}(x{nodes})",
            "SLURM_STEP_RESV_PORTS": f"{port}-{port + PER_NODE}",
        }
    )


def meet(tasks: int) -> float:
    """Returns the seconds from the first task's start to the last one's answer."""
    with socket.create_server(("", 0)) as probe:
        port = probe.getsockname()[1] - PER_NODE
    steps = [step(rank, tasks, port) for rank in range(tasks)]
    layouts: List[Layout] = []

    def come(own: SlurmStep) -> None:
        layouts.append(exchange_layout(own, host_of=lambda node: "127.0.0.1", timeout=300))

    threads = [threading.Thread(target=come, args=(own,)) for own in steps]
    started = time.perf_counter()
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    seconds = time.perf_counter() - started
    assert len(layouts) == tasks
    assert all(layout == layouts[0] for layout in layouts)
    return seconds


def main() -> None:
    """Publishes a table."""
    parser = report.parser(__doc__)
    parser.add_argument("sizes", type=int, nargs="*", default=[16, 200, 2000], metavar="TASKS")
    args = parser.parse_args()
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    threading.stack_size(256 * 1024)
    times = [meet(size) for size in args.sizes]
    rows = [
        (size, f"{seconds / times[0]:.1f}", f"{size / args.sizes[0]:.1f}", f"{seconds:.2f}")
        for size, seconds in zip(args.sizes, times)
    ]
    headings = ["tasks that meet", "ratio", "ratio of the tasks", "seconds"]
    report.publish("meeting", report.table(headings, rows), write=args.write)


if __name__ == "__main__":
    main()
