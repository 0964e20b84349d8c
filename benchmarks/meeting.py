"""Measures what the coordination service costs its task when all tasks connect and meet once.

The service runs in a separate process. This process simulates all other tasks: each opens a
connection, does the handshake, and takes part in a gather. The memory is the peak of the service's
whole process.
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
from typing import NamedTuple

import report

from slurm_resolver.coordination import ServiceAddress, wire
from slurm_resolver.coordination.client import connect
from slurm_resolver.coordination.secret import VARIABLE

_IDENTITY, _TIMEOUT = "1.0 start 0", 300.0


class Cost(NamedTuple):
    """The cost of one meeting: seconds, and the service's CPU seconds and peak memory in MiB."""

    seconds: float
    cpu: float
    memory: float


def serve(tasks: int, port: int) -> None:
    """Runs the service's task, and prints the cost of the meeting."""
    address = ServiceAddress("127.0.0.1", port, "here", _IDENTITY, tasks, 0, hosts_service=True)
    client = connect(address)
    start, start_cpu = time.perf_counter(), time.process_time()
    assert len(client.gather("the start", {"rank": 0}, _TIMEOUT)) == tasks
    seconds, cpu = time.perf_counter() - start, time.process_time() - start_cpu
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    print(json.dumps(Cost(seconds, cpu, peak)))


async def simulate_task(rank: int, port: int, starting: asyncio.Semaphore) -> None:
    """Connects as a task, waits for the values of all tasks, and disconnects."""
    async with starting:
        reader, writer = await asyncio.open_connection("127.0.0.1", port, limit=2**24)
        greeting = wire.decode(await reader.readuntil())
        hello = {"rank": rank, "role": "program", "pid": rank, "identity": _IDENTITY}
        hello.update(number=secrets.token_hex(8), challenge=secrets.token_hex(16))
        challenge = greeting["challenge"]
        key = os.environ[VARIABLE].encode()
        proof = wire.prove(key, "task", challenge, hello)
        writer.write(wire.encode({**hello, "proof": proof}))
        answer = wire.decode(await reader.readuntil())
        assert wire.is_proof(answer["proof"], key, "service", challenge, hello), answer
    value = json.dumps({"rank": rank})
    gather = {"gather": ["the start", 1], "value": value, "seconds": _TIMEOUT, "timeout": _TIMEOUT}
    writer.write(wire.encode({**gather, "without": []}))
    while "gathered" not in wire.decode(await reader.readuntil()):
        pass
    writer.write(wire.encode({"goodbye": ""}))
    writer.close()


async def simulate_tasks(tasks: int, port: int) -> None:
    """Simulates all tasks but the first."""
    starting = asyncio.Semaphore(500)  # the kernel drops connections when its queue is full
    await asyncio.gather(*(simulate_task(rank, port, starting) for rank in range(1, tasks)))


def measure(tasks: int) -> Cost:
    """Returns what a meeting of that many tasks costs the service."""
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
    asyncio.run(simulate_tasks(tasks, port))
    printed, _ = process.communicate()
    return Cost(*json.loads(printed))


def main() -> None:
    """Publishes a table."""
    parser = report.make_parser(__doc__, counts=[1000, 2000, 5000, 10_000])
    parser.add_argument("--serve", type=int, metavar="PORT", help="run only the service of N tasks")
    args = parser.parse_args()
    open_files = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (open_files, open_files))
    if args.serve:
        serve(args.counts[0], args.serve)
        return
    costs = [measure(tasks) for tasks in args.counts]
    rows = [
        (
            tasks,
            f"{tasks / args.counts[0]:.1f}",
            f"{cost.cpu / costs[0].cpu:.1f}",
            f"{cost.cpu:.2f}",
            f"{cost.cpu / tasks * 1e6:.0f}",
            f"{cost.seconds:.2f}",
            f"{cost.memory:.0f}",
        )
        for tasks, cost in zip(args.counts, costs)
    ]
    headings = ["tasks", "tasks: ratio", "CPU: ratio", "CPU seconds", "CPU µs per task"]
    headings += ["seconds", "peak MiB"]
    report.publish("meeting", report.table(headings, rows), write=args.write)


if __name__ == "__main__":
    main()
