"""Four hosts of a real Slurm on this machine: what crosses their links, and how fast they are."""

from __future__ import annotations

import contextlib
import json
import shlex
import socket
import subprocess
import sys
import tempfile
import time
from functools import partial
from pathlib import Path
from typing import Any, Dict, Iterator, List, Mapping, NamedTuple, Optional, Sequence, Tuple

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "tests" / "helpers"))

from slurm_cluster import Node, SlurmCluster, SlurmUnavailable
from teams import VARIABLE, read, write

HOSTS = ["n1", "n2", "n3", "n4"]
MB_PER_TASK = 500  # measured, with two teams
_START = 420.0  # seconds in which the tasks have to import TensorFlow and to meet
_ANSWER = 240.0


class Measured(NamedTuple):
    """Bytes that each host sent to the others in a step, its seconds, the share of CPUs busy."""

    sent: Dict[str, float]
    seconds: float
    busy: float


class Hosts:
    """The hosts, as a context manager."""

    def __enter__(self) -> Hosts:
        """Starts Slurm."""
        with contextlib.ExitStack() as stack:
            folder = stack.enter_context(tempfile.TemporaryDirectory(prefix="hosts-"))
            self._folder = Path(folder)
            nodes = [Node(name, cpus=16) for name in HOSTS]
            try:
                self._slurm = stack.enter_context(SlurmCluster(nodes, self._folder / "slurm"))
            except SlurmUnavailable as error:
                raise SystemExit(f"no Slurm to measure on: {error}") from None
            self._stack = stack.pop_all()
        return self

    def __exit__(self, *_: object) -> None:
        """Stops Slurm, and all that still runs there."""
        self._stack.close()

    def limit(self, mbit: Optional[int]) -> None:
        """Limits what each host sends and what it gets to that many Mbit/s each; None: no limit.

        The queues are long enough to lose nothing.
        """
        for number, name in enumerate(HOSTS, 1):
            sending = partial(self._slurm.run_on, name), "eth0"
            getting = self._slurm.run, f"port{number}"
            for run, device in (sending, getting):
                if mbit is None:
                    run(f"tc qdisc del dev {device} root", check=False)
                else:
                    queue = f"tbf rate {mbit}mbit burst 128kb limit 32mb"
                    run(f"tc qdisc replace dev {device} root {queue}")

    def sent(self) -> Dict[str, int]:
        """By host the bytes that its interface to the others has sent."""
        return {name: self._sent(name) for name in HOSTS}

    def _sent(self, name: str) -> int:
        lines = self._slurm.run_on(name, ["cat", "/proc/net/dev"]).stdout.splitlines()
        own = next(line for line in lines if line.strip().startswith("eth0:"))
        return int(own.partition(":")[2].split()[8])

    def hostfile(self, names: Sequence[str]) -> Dict[str, str]:
        """What srun has to find in its environment for the arbitrary distribution."""
        path = self._folder / "hostfile"
        path.write_text("".join(f"{name}\n" for name in names), encoding="ascii")
        return {"SLURM_HOSTFILE": str(path)}

    @contextlib.contextmanager
    def step(
        self,
        options: Sequence[str],
        script: Path,
        tasks: int,
        teams: Mapping[str, Mapping[str, Any]],
        environment: Optional[Mapping[str, str]] = None,
    ) -> Iterator[Step]:
        """A step of the script, whose tasks call `teams.obey`, once every process of it is ready.

        Args:
            options: srun's.
            script: the path of the tasks' Python script.
            tasks: how many there are.
            teams: by name, what `obey` passes on to the processes of that team.
            environment: variables for srun and the tasks.
        """
        path = self._folder / "socket"
        path.unlink(missing_ok=True)
        told = {"socket": str(path), "teams": teams}
        words = ["srun", f"--ntasks={tasks}", "--kill-on-bad-exit=1", *options]
        printed = self._folder / "printed"
        command = f"exec {shlex.join([*words, sys.executable, str(script)])} >{printed} 2>&1"
        variables = {
            **(environment or {}),
            VARIABLE: json.dumps(told),
            "TF_CPP_MIN_LOG_LEVEL": "3",
            "OPENBLAS_NUM_THREADS": "1",  # and so no thread that a fork would lose
        }
        with socket.socket(socket.AF_UNIX) as server:
            server.bind(str(path))
            server.listen(tasks * len(teams))
            server.settimeout(1)
            srun = self._slurm.popen(command, env=variables)
            made = Step(self, srun, list(teams))
            try:
                made.gather(server, tasks * len(teams))
                yield made
            except (OSError, EOFError) as error:  # time-outs too
                made.close()
                text = _end(srun, printed)
                raise SystemExit(f"{shlex.join(words)}: {error}\n{text}") from None
            finally:
                made.close()
                _end(srun, printed)


class Step:
    """A running step, and the connections to its processes by team."""

    def __init__(self, hosts: Hosts, srun: subprocess.Popen[str], teams: List[str]) -> None:
        """A step that `gather` completes."""
        self.hosts = hosts
        self._srun = srun
        self._teams: Dict[str, List[Any]] = {team: [] for team in teams}

    def gather(self, server: socket.socket, count: int) -> None:
        """Returns when that many processes have come and are ready."""
        deadline = time.monotonic() + _START
        while count:
            try:
                connection = server.accept()[0]
            except socket.timeout:  # a TimeoutError only from Python 3.10 on
                if self._srun.poll() is not None:
                    raise EOFError("the step has ended before it began") from None
                if time.monotonic() > deadline:
                    late = f"{count} processes were not ready in {_START:g} s"
                    raise TimeoutError(late) from None
                continue
            connection.settimeout(_ANSWER)
            file = connection.makefile("rw", encoding="ascii")
            connection.close()  # the file keeps it
            self._teams[read(file)].append(file)
            count -= 1

    def run(self, team: str, times: int) -> Measured:
        """Lets a team do that many steps, and returns what one of them took and sent."""
        before = self.hosts.sent()
        cpus = _cpus()
        for file in self._teams[team]:
            write(file, times)
        seconds = max([read(file) for file in self._teams[team]])
        idle, total = (after - early for after, early in zip(_cpus(), cpus))
        sent = {name: (now - before[name]) / times for name, now in self.hosts.sent().items()}
        return Measured(sent, seconds / times, 1 - idle / max(total, 1))

    def compare(self, times: int, rounds: int) -> Dict[str, List[Measured]]:
        """By team what `run` returned in each round, the teams taking turns."""
        taken: Dict[str, List[Measured]] = {team: [] for team in self._teams}
        for number in range(rounds):
            for team in list(self._teams)[:: -1 if number % 2 else 1]:
                taken[team].append(self.run(team, times))
        return taken

    def close(self) -> None:
        """Lets all processes end."""
        for files in self._teams.values():
            for file in files:
                with contextlib.suppress(OSError):
                    file.close()


def _cpus() -> Tuple[int, int]:
    """How long the machine's CPUs have been idle, and how long there were any, in ticks."""
    with open("/proc/stat", encoding="ascii") as file:
        ticks = [int(each) for each in file.readline().split()[1:9]]
    return ticks[3] + ticks[4], sum(ticks)


def _end(srun: subprocess.Popen[str], printed: Path) -> str:
    """Waits for the step, ends it if it has to, and returns the end of what it printed."""
    for seconds in (20, 10):
        try:
            srun.wait(timeout=seconds)
            break
        except subprocess.TimeoutExpired:
            srun.terminate()  # and where that does not help, it ends when Slurm is stopped
    noise = ("WARNING: All log messages", "I0000 ")  # what TensorFlow says in any case
    lines = printed.read_text(errors="replace").splitlines() if printed.exists() else []
    return "\n".join([line for line in lines if not line.startswith(noise)][-40:])


def lacking_memory(tasks: int) -> Optional[str]:
    """Returns None, or a line that says why that many tasks are not started."""
    lines = Path("/proc/meminfo").read_text(encoding="ascii").splitlines()
    line = next(line for line in lines if line.startswith("MemAvailable"))
    available = int(line.split()[1]) // 1000
    if available >= tasks * MB_PER_TASK:
        return None
    return f"{tasks} tasks need about {tasks * MB_PER_TASK:,} MB, and {available:,} MB are free."
