"""What it costs that the tasks of a step meet: at the meeting point, and beside Slurm's own ways.

Simulated: the meeting point is a process of its own, which finds the layout; this one plays all
other tasks, those of a node over one connection, as the first task of a node does. And on a real
Slurm: a step of as many processes as fit.
"""

from __future__ import annotations

import json
import resource
import selectors
import socket
import subprocess
import sys
import time
from typing import Any, Dict, List, NamedTuple

import report
from slurm_resolver.rendezvous.handshake import join
from slurm_resolver.rendezvous.secret import key_of_offer
from slurm_resolver.rendezvous.sockets import allow_open_files
from slurm_resolver.rendezvous.wire import Connection

from slurm_resolver.cluster.layout_exchange import exchange_layout
from slurm_resolver.slurm.hostlist_compress import compress_hostlist
from slurm_resolver.slurm.step import SlurmStep


class Cost(NamedTuple):
    """Of one meeting: seconds, those of CPU at the meeting point, and the MiB that it grew by."""

    seconds: float
    cpu: float
    memory: float


class Place(NamedTuple):
    """Where a task runs."""

    rank: int
    node: int
    local_rank: int


def places(tasks: int, per_node: int) -> List[Place]:
    """Returns where each rank runs: in an order that no variable tells."""
    nodes = max(1, tasks // per_node)
    return [Place(rank, (rank * 7919) % nodes, rank // nodes) for rank in range(tasks)]


def variables(place: Place, tasks: int, per_node: int, port: int) -> Dict[str, str]:
    """Returns what Slurm would set for a task."""
    nodes = max(1, tasks // per_node)
    return {
        "SLURM_PROCID": str(place.rank),
        "SLURM_LOCALID": str(place.local_rank),
        "SLURM_NODEID": str(place.node),
        "SLURMD_NODENAME": f"n{place.node}",
        "SLURM_JOB_ID": "1",
        "SLURM_STEP_ID": "0",
        "SLURM_STEP_NODELIST": compress_hostlist([f"n{i}" for i in range(nodes)]),
        "SLURM_STEP_TASKS_PER_NODE": f"{tasks // nodes}(x{nodes})",
        "SLURM_STEP_RESV_PORTS": f"{port - tasks // nodes}-{port}",
    }


def host(tasks: int, per_node: int, port: int) -> None:
    """Is the meeting point, and prints what the meeting has cost it."""
    first = next(p for p in places(tasks, per_node) if (p.node, p.local_rank) == (0, 0))
    step = SlurmStep.read(variables(first, tasks, per_node, port))
    memory = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    started, cpu = time.perf_counter(), time.process_time()
    layout = exchange_layout(step, host_of=lambda node: "127.0.0.1", timeout=300)
    seconds, cpu = time.perf_counter() - started, time.process_time() - cpu
    grown = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - memory
    for place in places(tasks, per_node):
        assert layout.nodes[layout.node_of[place.rank]] == f"n{place.node}"
    print(json.dumps(Cost(seconds, cpu, grown / 1024)))


class Node:
    """The first task of a node, with the notes of all its tasks."""

    def __init__(self, sock: socket.socket, tasks: List[Place]) -> None:
        self.connection = Connection.greet(sock)
        join(self.connection, "1.0:layout", key_of_offer, "the host", time.monotonic() + 300)
        for task in tasks:
            self.connection.send(self.visit(task))
        self.answered = False

    def receive(self) -> None:
        """Does what the messages that have come ask for."""
        received = self.connection.socket.recv(2**20)
        assert received, "the meeting point has closed a connection"
        for message in self.connection.decoder.feed(received):
            if "here" in message:
                self.connection.send(message)
            elif "answer" in message:
                self.answered = True
            else:
                assert message == {"taken": True}, message

    def visit(self, task: Place) -> Dict[str, Any]:
        """Returns the message by which a task comes."""
        note = {"node": f"n{task.node}", "local_rank": task.local_rank, "node_id": task.node}
        return {"rank": task.rank, "visit": "first", "seconds": 300, "note": note}


def simulate(tasks: int, per_node: int) -> Cost:
    """Returns what a meeting of so many tasks costs the meeting point."""
    with socket.create_server(("", 0)) as probe:
        port = probe.getsockname()[1]
    command = [sys.executable, __file__, "--host", *map(str, (tasks, per_node, port))]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    by_node: Dict[int, List[Place]] = {}
    for place in places(tasks, per_node):
        if (place.node, place.local_rank) != (0, 0):
            by_node.setdefault(place.node, []).append(place)
    selector = selectors.DefaultSelector()
    waiting = 0
    for on_node in by_node.values():
        node = Node(connected(port), on_node)
        selector.register(node.connection.socket, selectors.EVENT_READ, node)
        waiting += 1
        serve(selector, 0)
    while waiting:
        waiting -= serve(selector, None)
    told, _ = process.communicate()
    return Cost(*json.loads(told))


def connected(port: int) -> socket.socket:
    """Returns a connection to the meeting point, which may not have started yet."""
    while True:
        try:
            return socket.create_connection(("127.0.0.1", port), timeout=300)
        except ConnectionRefusedError:
            time.sleep(0.01)


def serve(selector: selectors.BaseSelector, timeout: Any) -> int:
    """Handles what has come; returns how many nodes have their answer by it."""
    answered = 0
    for key, _ in selector.select(timeout):
        key.data.receive()
        if key.data.answered:
            selector.unregister(key.fileobj)
            key.data.connection.close()
            answered += 1
    return answered


def main() -> None:
    """Publishes the tables."""
    parser = report.parser(__doc__)
    parser.add_argument(
        "sizes", type=int, nargs="*", default=[16, 200, 2000, 10_000, 50_000], metavar="TASKS"
    )
    parser.add_argument("--per-node", type=int, nargs="*", default=[8, 1])
    parser.add_argument("--host", type=int, nargs=3, help="be the meeting point")
    args = parser.parse_args()
    allow_open_files(60_000)
    if args.host:
        host(*args.host)
        return
    most = resource.getrlimit(resource.RLIMIT_NOFILE)[0] - 1000
    rows = []
    for per_node in args.per_node:
        costs: List[Cost] = []
        for tasks in args.sizes:
            if tasks // per_node > most:
                continue
            cost = simulate(tasks, per_node)
            costs.append(cost)
            rows.append(
                (
                    tasks,
                    max(1, tasks // per_node),
                    f"{tasks / args.sizes[0]:.1f}",
                    f"{cost.cpu / costs[0].cpu:.1f}",
                    f"{cost.seconds:.2f}",
                    f"{cost.cpu:.2f}",
                    f"{cost.cpu / tasks * 1e6:.0f}",
                    f"{cost.memory:.0f}",
                )
            )
    headings = [
        "tasks",
        "nodes",
        "ratio of the tasks",
        "ratio of the CPU",
        "seconds",
        "CPU seconds",
        "µs CPU a task",
        "MiB",
    ]
    report.publish("meeting", report.table(headings, rows), write=args.write)


if __name__ == "__main__":
    main()
