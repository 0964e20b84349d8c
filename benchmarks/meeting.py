"""What the coordination service costs the task that it runs in: every task connects and meets once.

The service is a process of its own. This process plays all other tasks, each with a connection of
its own, the handshake and a gather. Memory is the peak of the service's whole process.
"""

from __future__ import annotations

import asyncio
import json
import os
import resource
import secrets
import socket
import subprocess
import sys
import time
from typing import List, NamedTuple

import report

from slurm_resolver.coordination import ServiceAddress, wire
from slurm_resolver.coordination.client import connect
from slurm_resolver.coordination.secret import VARIABLE

_IDENTITY, _SECONDS = "1.0 start 0", 300.0


class Cost(NamedTuple):
    """The cost of one meeting: seconds, the service's seconds of CPU, and its peak in MiB."""

    seconds: float
    cpu: float
    memory: float


def address(port: int, tasks: int) -> ServiceAddress:
    """Returns the address of the service, as its own task computes it."""
    return ServiceAddress("127.0.0.1", port, "here", _IDENTITY, tasks, 0, serves=True)


def serve(tasks: int, port: int) -> None:
    """Is the task that serves, and prints what the meeting has cost it."""
    client = connect(address(port, tasks))
    started, cpu = time.perf_counter(), time.process_time()
    assert len(client.gather("the start", {"rank": 0}, _SECONDS)) == tasks
    seconds, cpu = time.perf_counter() - started, time.process_time() - cpu
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    print(json.dumps(Cost(seconds, cpu, peak)))


async def play(rank: int, port: int, gate: asyncio.Semaphore) -> None:
    """Plays a task: comes, gets the values of all, and leaves."""
    async with gate:  # a kernel drops connections beyond those that it queues
        reader, writer = await asyncio.open_connection("127.0.0.1", port, limit=2**24)
        greeting = wire.decode(await reader.readuntil())
        hello = {"rank": rank, "role": "program", "pid": rank, "identity": _IDENTITY}
        hello.update(number=secrets.token_hex(8), challenge=secrets.token_hex(16))
        parts = [greeting["challenge"], hello["challenge"], _IDENTITY]
        parts += [hello[key] for key in ("rank", "number", "role")]
        key = os.environ[VARIABLE].encode()
        writer.write(wire.encode({**hello, "proof": wire.prove(key, "task", *parts)}))
        answer = wire.decode(await reader.readuntil())
        assert wire.is_proof(answer["proof"], key, "service", *parts), answer
    value = json.dumps({"rank": rank})
    gather = {"gather": "the start 1", "value": value, "seconds": _SECONDS, "timeout": _SECONDS}
    writer.write(wire.encode({**gather, "without": []}))
    while "gathered" not in wire.decode(await reader.readuntil()):
        pass
    writer.write(wire.encode({"goodbye": ""}))
    writer.close()


async def play_all(tasks: int, port: int) -> None:
    """Plays all tasks but the first."""
    gate = asyncio.Semaphore(500)
    await asyncio.gather(*(play(rank, port, gate) for rank in range(1, tasks)))


def simulate(tasks: int) -> Cost:
    """Returns what a meeting of so many tasks costs the service."""
    with socket.create_server(("", 0)) as probe:
        port = probe.getsockname()[1]
    os.environ[VARIABLE] = secrets.token_hex(16)
    command = [sys.executable, __file__, "--serve", str(port), str(tasks)]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    while True:
        try:
            socket.create_connection(("127.0.0.1", port)).close()
            break
        except ConnectionRefusedError:
            time.sleep(0.05)
    asyncio.run(play_all(tasks, port))
    printed, _ = process.communicate()
    return Cost(*json.loads(printed))


def main() -> None:
    """Publishes the table."""
    parser = report.make_parser(__doc__)
    sizes = [1000, 2000, 5000, 10_000]
    parser.add_argument("sizes", type=int, nargs="*", default=sizes, metavar="TASKS")
    parser.add_argument("--serve", type=int, metavar="PORT", help="be the service")
    args = parser.parse_args()
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    if args.serve:
        serve(args.sizes[0], args.serve)
        return
    costs: List[Cost] = [simulate(tasks) for tasks in args.sizes]
    rows = [
        (
            tasks,
            f"{tasks / args.sizes[0]:.1f}",
            f"{cost.cpu / costs[0].cpu:.1f}",
            f"{cost.cpu:.2f}",
            f"{cost.cpu / tasks * 1e6:.0f}",
            f"{cost.seconds:.2f}",
            f"{cost.memory:.0f}",
        )
        for tasks, cost in zip(args.sizes, costs)
    ]
    headings = ["tasks", "ratio of the tasks", "ratio of the CPU", "CPU seconds", "µs CPU a task"]
    headings += ["seconds", "MiB"]
    report.publish("meeting", report.table(headings, rows), write=args.write)


if __name__ == "__main__":
    main()
