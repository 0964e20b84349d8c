"""Measures what the coordination service costs its task, in a meeting and in a training.

The service runs in a separate process. This process simulates all other tasks: each opens a
connection, does the handshake, and takes part in a gather. The workers then exchange values, as
they do before `fit` and at the end of an epoch, and train for a while: a step sends no message, but
every worker reports its progress every 5 s, and answers the service's pings. The memory is the peak
of the service's whole process.
"""

from __future__ import annotations

import asyncio
import itertools
import json
import os
import random
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
from slurm_resolver.coordination.progress import STEP, TRAINING, Report, report_seconds
from slurm_resolver.coordination.secret import VARIABLE

_IDENTITY, _TIMEOUT = "1.0 start 0", 300.0
_EXCHANGES = 5
_LIMIT = 300.0  # seconds without a step that make a stall


class Cost(NamedTuple):
    """What the service needs; CPU time is in seconds.

    Attributes:
        seconds: the time of the meeting.
        cpu: of the meeting.
        exchange: CPU time of one exchange.
        training: CPU time of each second of a training.
        memory: the peak, in MiB.
    """

    seconds: float
    cpu: float
    exchange: float
    training: float
    memory: float


def serve(tasks: int, port: int, training_seconds: float) -> None:
    """Runs the service's task, and prints the cost."""
    address = ServiceAddress("127.0.0.1", port, "here", _IDENTITY, tasks, 0, hosts_service=True)
    client = connect(address)
    start, start_cpu = time.perf_counter(), time.process_time()
    assert len(client.gather("the start", {"rank": 0}, _TIMEOUT)) == tasks
    seconds, cpu = time.perf_counter() - start, time.process_time() - start_cpu
    start_cpu = time.process_time()
    for _ in range(_EXCHANGES):
        client.gather("exchange", {"rank": 0}, _TIMEOUT)
    exchange = (time.process_time() - start_cpu) / _EXCHANGES
    start_cpu = time.process_time()
    time.sleep(training_seconds)
    training = (time.process_time() - start_cpu) / training_seconds
    client.gather("the end", {"rank": 0}, _TIMEOUT)
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    print(json.dumps(Cost(seconds, cpu, exchange, training, peak)))


async def simulate_task(rank: int, port: int, starting: asyncio.Semaphore) -> None:
    """Connects as a task, meets the others, trains until task 0 ends that, and disconnects."""
    async with starting:
        reader, writer = await asyncio.open_connection("127.0.0.1", port, limit=2**24)
        greeting = json.loads(await reader.readuntil())
        hello = {"rank": rank, "process": f"{rank} 1", "challenge": secrets.token_hex(16)}
        challenge = greeting["challenge"]
        key = os.environ[VARIABLE].encode()
        proof = wire.prove(key, "task", challenge, hello)
        writer.write(wire.encode({**hello, "proof": proof}))
        answer = json.loads(await reader.readuntil())
        assert wire.is_proof(answer["proof"], key, "service", challenge, hello), answer
    await gather(rank, "the start", 1, reader, writer)
    for number in range(_EXCHANGES):
        await gather(rank, "exchange", number + 1, reader, writer)
    reports = asyncio.create_task(report_progress(writer))
    await gather(rank, "the end", 1, reader, writer)
    reports.cancel()
    writer.write(wire.encode({"goodbye": ""}))
    writer.close()


async def gather(
    rank: int,
    purpose: str,
    number: int,
    reader: asyncio.StreamReader,
    writer: asyncio.StreamWriter,
) -> None:
    """Gives a task's value, and answers pings until the values of all tasks have come."""
    message = {"gather": [purpose, number], "value": json.dumps({"rank": rank})}
    writer.write(wire.encode({**message, "without": [], "patient": False}))
    while True:
        message = json.loads(await reader.readuntil())
        if "ping" in message:
            writer.write(wire.encode({"pong": True}))
        if "gathered" in message:
            return


async def report_progress(writer: asyncio.StreamWriter) -> None:
    """Reports what a worker does, as it would in a training."""
    await asyncio.sleep(random.uniform(0, report_seconds(_LIMIT)))
    for step in itertools.count(1):
        progress = Report(TRAINING, epoch=1, step=step, begun=step, phase=STEP, ms=250.0)
        writer.write(wire.encode({"progress": progress, "limit": _LIMIT}))
        await asyncio.sleep(report_seconds(_LIMIT))


async def simulate_tasks(tasks: int, port: int) -> None:
    """Simulates all tasks but the first."""
    starting = asyncio.Semaphore(500)  # the kernel drops connections when its queue is full
    await asyncio.gather(*(simulate_task(rank, port, starting) for rank in range(1, tasks)))


def measure(tasks: int, training_seconds: float) -> Cost:
    """Returns what that many tasks cost the service."""
    with socket.create_server(("", 0)) as probe:
        port = probe.getsockname()[1]
    os.environ[VARIABLE] = secrets.token_hex(16)
    options = ["--serve", str(port), "--training", str(training_seconds)]
    command = [sys.executable, __file__, *options, str(tasks)]
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
    text = "seconds of the training [%(default)s]"
    parser.add_argument("--training", type=float, default=15.0, metavar="N", help=text)
    args = parser.parse_args()
    open_files = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (open_files, open_files))
    if args.serve:
        serve(args.counts[0], args.serve, args.training)
        return
    costs = [measure(tasks, args.training) for tasks in args.counts]
    rows = [
        (
            tasks,
            f"{tasks / args.counts[0]:.1f}",
            f"{cost.cpu / costs[0].cpu:.1f}",
            f"{cost.cpu:.2f}",
            f"{cost.cpu / tasks * 1e6:.0f}",
            f"{cost.seconds:.2f}",
            f"{1000 * cost.exchange:.0f}",
            f"{100 * cost.training:.1f}",
            f"{cost.memory:.0f}",
        )
        for tasks, cost in zip(args.counts, costs)
    ]
    headings = ["tasks", "tasks: ratio", "CPU: ratio", "CPU seconds", "CPU µs per task"]
    headings += ["seconds", "an exchange: CPU ms", "a training: % of a CPU", "peak MiB"]
    report.publish("meeting", report.table(headings, rows), write=args.write)
    text = "\n".join(
        f"- {tasks:,} tasks: {cost.cpu:.2f} s, {1000 * cost.exchange:.0f} ms and "
        f"{100 * cost.training:.1f} % of a CPU."
        for tasks, cost in zip(args.counts[:2], costs)
    )
    report.publish("service", text, write=args.write, page=report.GUIDE)


if __name__ == "__main__":
    main()
