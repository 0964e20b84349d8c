"""Four hosts of a real Slurm on this machine, whose links can be limited and measured."""

from __future__ import annotations

import contextlib
import json
import re
import shlex
import socket
import subprocess
import sys
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import (
    Any,
    NamedTuple,
)

from real_slurm import start_slurm
from slurm_cluster import SlurmCluster
from variants import VARIABLE, receive, send

HOSTS = ["n1", "n2", "n3", "n4"]
MB_PER_TASK = 500  # measured with two variants
_START_TIMEOUT = 420.0  # the tasks import TensorFlow and connect to each other
_ANSWER_TIMEOUT = 240.0


class Measured(NamedTuple):
    """Bytes that each host sent in a step, the step's seconds, and the share of busy CPU time."""

    sent: dict[str, float]
    seconds: float
    busy: float


@contextlib.contextmanager
def start_hosts(tasks: int) -> Iterator[Hosts]:
    """Starts Slurm on the four hosts for steps of up to that many tasks."""
    _check_memory(tasks)
    with start_slurm(len(HOSTS), cpus=16) as slurm:
        yield Hosts(slurm)


class Hosts:
    """The four hosts of a running Slurm."""

    def __init__(self, slurm: SlurmCluster) -> None:
        self._slurm = slurm

    def limit_links(self, mbit: int | None) -> None:
        """Limits each host to sending and receiving `mbit` Mbit/s; None removes the limit.

        The queues are long enough that no packet is dropped.
        """
        for number, name in enumerate(HOSTS, 1):
            # A host sends through its eth0, and receives from a port of the login host.
            for node, device in ((name, "eth0"), (None, f"port{number}")):
                if mbit is None:
                    self._slurm.run(f"tc qdisc del dev {device} root", node=node, status=None)
                else:
                    queue = f"tbf rate {mbit}mbit burst 128kb limit 32mb"
                    self._slurm.run(f"tc qdisc replace dev {device} root {queue}", node=node)

    def bytes_sent(self) -> dict[str, int]:
        """Returns the bytes that each host has sent so far: those that its port has received."""
        devices = self._slurm.run(["cat", "/proc/net/dev"]).stdout
        received = dict(re.findall(r"^ *port(\d): *(\d+)", devices, re.M))
        return {name: int(received[str(number)]) for number, name in enumerate(HOSTS, 1)}

    @contextlib.contextmanager
    def step(
        self,
        options: Sequence[str],
        script: Path,
        tasks: int,
        variants: Mapping[str, Mapping[str, Any]],
    ) -> Iterator[Step]:
        """Runs a step, and yields it once all its processes are ready.

        Args:
            options: srun's options.
            script: the Python script of the tasks, which calls `variants.serve_variants`.
            tasks: the number of tasks.
            variants: the keywords of each variant, by its name.
        """
        path = self._slurm.directory / "socket"
        path.unlink(missing_ok=True)
        log = self._slurm.directory / "step.log"
        words = ["srun", f"--ntasks={tasks}", "--kill-on-bad-exit=1", *options]
        command = f"exec {shlex.join([*words, sys.executable, str(script)])} >{log} 2>&1"
        variables = {
            VARIABLE: json.dumps({"socket": str(path), "variants": variants}),
            "TF_CPP_MIN_LOG_LEVEL": "3",
            "OPENBLAS_NUM_THREADS": "1",  # a fork would lose OpenBLAS's threads
        }
        with socket.socket(socket.AF_UNIX) as server:
            server.bind(str(path))
            server.listen(tasks * len(variants))
            server.settimeout(1)
            try:
                with Step(self, self._slurm.popen(command, env=variables), variants) as step:
                    step.accept(server, tasks * len(variants))
                    yield step
            except (OSError, EOFError) as error:  # an OSError may be a timeout
                raise SystemExit(f"{shlex.join(words)}: {error}\n{_tail(log)}") from None


class Step:
    """A running step, with a connection to each of its processes."""

    def __init__(self, hosts: Hosts, srun: Any, variants: Iterable[str]) -> None:
        self.hosts = hosts
        self._srun = srun
        self._files: dict[str, list[Any]] = {variant: [] for variant in variants}

    def __enter__(self) -> Step:
        return self

    def __exit__(self, *_: object) -> None:
        """Disconnects, which ends the processes, and waits for the step's end."""
        for files in self._files.values():
            for file in files:
                with contextlib.suppress(OSError):
                    file.close()
        for seconds in (20, 10):
            try:
                self._srun.wait(timeout=seconds)
                break
            except subprocess.TimeoutExpired:
                self._srun.terminate()  # if this fails too, the step ends when Slurm is stopped

    def accept(self, server: socket.socket, count: int) -> None:
        """Waits until `count` processes have connected, which they do when they are ready."""
        deadline = time.monotonic() + _START_TIMEOUT
        while count:
            try:
                connection = server.accept()[0]
            except socket.timeout:  # a TimeoutError only since Python 3.10
                if self._srun.poll() is not None:
                    raise EOFError("the step ended during its start") from None
                if time.monotonic() > deadline:
                    late = f"{count} processes were not ready after {_START_TIMEOUT:g} s"
                    raise TimeoutError(late) from None
                continue
            connection.settimeout(_ANSWER_TIMEOUT)
            file = connection.makefile("rw", encoding="ascii")
            connection.close()  # the file keeps it open
            self._files[receive(file)].append(file)
            count -= 1

    def measure(self, variant: str, times: int) -> Measured:
        """Runs a number of training steps of a variant, and returns the mean of one."""
        sent_before = self.hosts.bytes_sent()
        idle_before, total_before = _cpu_ticks()
        for file in self._files[variant]:
            send(file, times)
        seconds = max([receive(file) for file in self._files[variant]])
        idle, total = _cpu_ticks()
        busy = 1 - (idle - idle_before) / max(total - total_before, 1)
        sent_after = self.hosts.bytes_sent()
        sent = {name: (sent_after[name] - sent_before[name]) / times for name in HOSTS}
        return Measured(sent, seconds / times, busy)

    def measure_in_turn(self, times: int, rounds: int) -> dict[str, list[Measured]]:
        """Measures the variants in turn; returns the results of all rounds by variant."""
        results: dict[str, list[Measured]] = {variant: [] for variant in self._files}
        for number in range(rounds):
            # Every second round has the opposite order.
            for variant in list(self._files)[:: -1 if number % 2 else 1]:
                results[variant].append(self.measure(variant, times))
        return results


def _cpu_ticks() -> tuple[int, int]:
    """Returns the ticks that the machine's CPUs have been idle, and all their ticks."""
    with open("/proc/stat", encoding="ascii") as file:
        ticks = [int(word) for word in file.readline().split()[1:9]]
    return ticks[3] + ticks[4], sum(ticks)


def _tail(log: Path) -> str:
    """Returns the last lines of a step's output."""
    lines = log.read_text(errors="replace").splitlines() if log.exists() else []
    return "\n".join(lines[-40:])


def _check_memory(tasks: int) -> None:
    """Exits if this machine lacks the memory for that many tasks."""
    lines = Path("/proc/meminfo").read_text(encoding="ascii").splitlines()
    line = next(line for line in lines if line.startswith("MemAvailable"))
    available, needed = int(line.split()[1]) // 1000, tasks * MB_PER_TASK
    if available < needed:
        raise SystemExit(f"{tasks} tasks need about {needed:,} MB, and {available:,} MB are free.")
