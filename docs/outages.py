"""Stops workers or cuts their nodes off, and writes what happens to benchmarks/README.md.

    python docs/outages.py outages          prints the table of nodes that are cut off
    python docs/outages.py stops            prints the table of stopped processes
    python docs/outages.py stops --grace 6  … with a grace of 6 s, and stops as much shorter
    python docs/outages.py stops --write    also writes it there, if no row is wrong
    python docs/outages.py stops --slurm 26.05  uses this version of Slurm, of `make slurms`

It needs root, TensorFlow and Slurm, and takes half an hour; with --at-once 2, twice as long. Each
row is a training on a real Slurm, with a node for each worker. The status is 1 if a row is wrong: a
training does not start, a shorter fault than what docs/fault_tolerance.md says ends it, a longer
one does not, or nobody or the wrong worker is named. Nothing else should run on the machine: a node
that is cut off for 40 s is noticed only a few seconds before the end.
"""

from __future__ import annotations

import argparse
import contextlib
import re
import signal
import subprocess
import sys
import time
from collections import deque
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple

DOCS = Path(__file__).resolve().parent
sys.path.insert(0, str(DOCS.parent / "tests" / "helpers"))

from slurm_cluster import SlurmCluster  # noqa: E402
from slurm_conf import numbered  # noqa: E402
from slurm_installation import installations, own  # noqa: E402

PAGE = DOCS.parent / "benchmarks" / "README.md"
MARKS = r"(<!-- {0} -->\n).*?(<!-- /{0} -->)"
GRACE = 30
NODES = 8
FOR_EVER = float("inf")
IDLE_SECONDS = 300.0  # for Slurm to notice that a node answers again
START_SECONDS = 300.0
END_SECONDS = 150.0  # after a fault
END_SRUN_SECONDS = 30.0
STEPS_AGAIN = 20  # after which a training has survived
NAMED = re.compile(
    r"^ *(\d+): (?:no answer for \S+ s from |\D.*?)(\w+ \d+) \(rank (\d+) on \S+\)"
    r"(?: is gone|, process)"
)
MOMENTS = ("before fit", "first step", "step", "epoch's end", "saving", "before predict")
STOPPED = Path(__file__).parents[1] / "tests" / "helpers" / "silent_training.py"

# A worker writes its process id, and then the number of each step. A file is never half written.
PROGRAM = """
import os, sys, time
from pathlib import Path
folder, rank = Path(sys.argv[1]), os.environ["SLURM_PROCID"]

def write(name, number):
    (folder / f"new.{rank}").write_text(str(number))
    (folder / f"new.{rank}").rename(folder / f"{name}.{rank}")

write("pid", os.getpid())
import keras
import numpy as np
from slurm_resolver import MultiWorkerMirroredStrategy

strategy = MultiWorkerMirroredStrategy()
with strategy.scope():
    model = keras.Sequential([keras.Input((2,)), keras.layers.Dense(1)])
    model.compile("sgd", "mse")

def tell(batch, logs):
    write("step", batch)
    time.sleep(0.1)

ones = np.ones((160_000, 2))
note = keras.callbacks.LambdaCallback(on_train_batch_end=tell)
model.fit(ones, ones[:, :1], batch_size=16, verbose=0, callbacks=[note])
"""


class Fault(NamedTuple):
    """What is done to one worker."""

    kind: str  # "stopped" or "cut off"
    seconds: float
    rank: int
    workers: int
    grace: float = GRACE
    moment: str = "step"

    def __str__(self) -> str:
        lasts = "for ever" if self.seconds == FOR_EVER else f"for {self.seconds:g} s"
        return f"{self.kind} {lasts}"

    @property
    def ends(self) -> bool:
        """Whether it should end the training."""
        return self.seconds > (self.grace if self.kind == "cut off" else 4 * self.grace)


OUTAGES = [
    Fault("cut off", seconds, rank, workers)
    for workers in (2, 4)
    for seconds in (5, 20, 40, FOR_EVER)
    for rank in (0, 1)
]


def stops(grace: float) -> list[Fault]:
    """Returns the stops: of 40 s, 150 s and for ever if the grace is 30 s."""
    return [
        Fault("stopped", seconds * grace / GRACE, rank, 2, grace, moment)
        for moment in MOMENTS
        for seconds in (40, 150, FOR_EVER)
        for rank in (0, 1)
    ]


class Trial:
    """A training with a fault."""

    def __init__(self, slurm: SlurmCluster, fault: Fault, nodes: list[str], folder: Path) -> None:
        self.slurm = slurm
        self.fault = fault
        self.nodes = nodes
        self.folder = folder
        self.began = time.monotonic()
        # by rank of who has named it: the named rank, and after how many seconds
        self.named: dict[int, tuple[int, float]] = {}
        self.last_lines: deque[str] = deque(maxlen=100)

    def run(self) -> str:
        """Returns the row of the table; an error that ends one training does not end the others."""
        fault = self.fault
        try:
            result, names = self._result()
        except (AssertionError, OSError, RuntimeError) as error:
            self.last_lines.append(str(error))
            result, names = f"{type(error).__name__} (wrong)", "nobody"
        where = fault.workers if fault.kind == "cut off" else fault.moment
        row = f"| {fault} | {fault.rank} | {where} | {result} | {names} |"
        if "(wrong)" in row:
            print(row, *self.last_lines, sep="\n", file=sys.stderr, flush=True)
        return row

    def _program(self) -> list[str]:
        (self.folder / "train.py").write_text(PROGRAM)
        return [str(self.folder / "train.py"), str(self.folder)]

    def _has_started(self) -> bool:
        return min(self._steps()) > 20

    def _result(self) -> tuple[str, str]:
        """Returns what the training does, and who is named by whom."""
        fault = self.fault
        self._await(self._nodes_are_idle, IDLE_SECONDS)
        self.folder.mkdir()
        command = [
            "srun",
            f"--job-name={self.folder.name}",
            "--label",
            "--kill-on-bad-exit=0",
            f"-N{fault.workers}",
            f"-n{fault.workers}",
            f"-w{','.join(self.nodes)}",
            sys.executable,
            *self._program(),
        ]
        env = {
            "PYTHONPATH": str(DOCS.parent),
            "SLURM_RESOLVER_NETWORK_GRACE": f"{fault.grace:g}",
        }
        step = self.slurm.popen(command, env=env, cwd=self.folder)
        with ThreadPoolExecutor(2) as pool:
            pool.submit(self._read, step.stdout)
            pool.submit(self._read, step.stderr)
            try:
                if not self._await(self._has_started, START_SECONDS):
                    raise RuntimeError("the training has not started")
                survived = self._inject()
                named = dict(self.named)  # later ones are effects of the lines below
            finally:
                for rank in range(fault.workers):
                    with contextlib.suppress(FileNotFoundError):  # it has not started
                        self._kill("KILL", rank)
                self.slurm.run(f"scancel --signal=KILL --name={self.folder.name}", status=None)
                with contextlib.suppress(subprocess.TimeoutExpired):
                    step.wait(END_SRUN_SECONDS)
                step.send_signal(signal.SIGKILL)
        return self._judge(survived, named)

    def _nodes_are_idle(self) -> bool:
        command = f"sinfo --noheader --format=%T --nodes={','.join(self.nodes)}"
        return self.slurm.run(command).stdout.split() == ["idle"]

    def _inject(self) -> bool:
        fault = self.fault
        self.began = time.monotonic()
        self._switch(False)
        try:
            if fault.seconds == FOR_EVER:
                others = [rank for rank in range(fault.workers) if rank != fault.rank]
                return not self._await(lambda: not any(map(self._runs, others)), END_SECONDS)
            time.sleep(fault.seconds)
        finally:
            self._switch(True)
        wanted = min(self._steps()) + STEPS_AGAIN
        self._await(lambda: min(self._steps()) > wanted or not self._runs(), END_SECONDS)
        return min(self._steps()) > wanted

    def _switch(self, on: bool) -> None:
        port = f"port{self.nodes[self.fault.rank][1:]}"
        self.slurm.run(f"ip link set {port} {'up' if on else 'down'}")

    def _kill(self, sign: str, rank: int) -> bool:
        pid = self.folder / f"pid.{rank}"
        command = f"kill -{sign} {pid.read_text()}"
        return self.slurm.run_on(self.nodes[rank], command, status=None).returncode == 0

    def _runs(self, rank: int | None = None) -> bool:
        ranks = range(self.fault.workers) if rank is None else [rank]
        return any(self._kill("0", one) for one in ranks)

    def _steps(self) -> Iterator[int]:
        for rank in range(self.fault.workers):
            path = self.folder / f"step.{rank}"
            yield int(path.read_text()) if path.exists() else 0

    def _await(self, predicate: Any, seconds: float) -> bool:
        until = time.monotonic() + seconds
        while not predicate():
            if time.monotonic() > until:
                return False
            time.sleep(0.5)
        return True

    def _read(self, lines: Any) -> None:
        for line in lines:
            self.last_lines.append(line.rstrip())
            found = NAMED.match(line)
            if found:
                after = time.monotonic() - self.began
                self.named.setdefault(int(found[1]), (int(found[3]), after))

    def _judge(self, survived: bool, by_rank: dict[int, tuple[int, float]]) -> tuple[str, str]:
        fault = self.fault
        result = "continues" if survived else "ends"
        names = "nobody"
        first = min(by_rank.items(), key=lambda one: one[1][1], default=None)
        if first:
            by, (named, after) = first
            names = f"worker {named}, by worker {by}, after {after:.0f} s"
            right = named == fault.rank and not survived
        else:
            right = survived
        if not right or survived == fault.ends:
            result += " (wrong)"
        return result, names


class StopTrial(Trial):
    """A training in which a worker stops itself."""

    def _program(self) -> list[str]:
        return [str(STOPPED), self.fault.moment, str(self.fault.rank)]

    def _has_started(self) -> bool:
        return (self.folder / f"pid.{self.fault.rank}").exists()  # and it stops

    def _switch(self, on: bool) -> None:
        if on:
            self._kill("CONT", self.fault.rank)

    def _runs(self, rank: int | None = None) -> bool:
        ranks = range(self.fault.workers) if rank is None else [rank]
        return not all((self.folder / f"ended.{one}").exists() for one in ranks)

    def _steps(self) -> Iterator[int]:
        """Yields a number of steps that says whether the worker has trained to the end."""
        for rank in range(self.fault.workers):
            yield STEPS_AGAIN + 1 if (self.folder / f"trained.{rank}").exists() else 0

    def _judge(self, survived: bool, by_rank: dict[int, tuple[int, float]]) -> tuple[str, str]:
        fault = self.fault
        names = "nobody"
        first = min(by_rank.items(), key=lambda one: one[1][1], default=None)
        if first:
            by, (named, after) = first
            names = f"worker {named}, by worker {by}, after {after:.0f} s"
        is_named = first is not None and first[1][0] == fault.rank and after < fault.grace + 6
        right = is_named and survived != fault.ends
        return ("continues" if survived else "ends") + ("" if right else " (wrong)"), names


def rows(
    slurm: SlurmCluster, folder: Path, faults_of_all: list[Fault], at_once: int
) -> Iterator[str]:
    """Yields the rows; several trainings run at the same time."""
    for workers in (2, 4):
        faults = [fault for fault in faults_of_all if fault.workers == workers]
        places = min(NODES // workers, at_once)
        for begin in range(0, len(faults), places):
            some = faults[begin : begin + places]
            trials = [
                (Trial if fault.kind == "cut off" else StopTrial)(
                    slurm,
                    fault,
                    [f"n{place * workers + number + 1}" for number in range(workers)],
                    folder / f"{workers}.{begin + place}",
                )
                for place, fault in enumerate(some)
            ]
            with ThreadPoolExecutor(places) as pool:
                yield from pool.map(Trial.run, trials)


def main() -> None:
    """Prints the table, and writes it."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    versions = {one.version: one for one in installations()}
    parser.add_argument("table", choices=("outages", "stops"))
    parser.add_argument("--grace", type=float, default=GRACE, help="for stops (30)")
    parser.add_argument("--at-once", type=int, default=4, help="trainings (4)")
    parser.add_argument("--write", action="store_true", help=f"write it to {PAGE.name}")
    parser.add_argument(
        "--slurm",
        metavar="VERSION",
        choices=versions,
        default=own().version,
        help=f"one of {', '.join(versions)} (the installed one)",
    )
    args = parser.parse_args()
    is_outage = args.table == "outages"
    faults = OUTAGES if is_outage else stops(args.grace)
    lines = [
        f"| a worker is | worker | {'workers' if is_outage else 'at'} | the training | named |",
        "| --- | --- | --- | --- | --- |",
    ]
    print(*lines, sep="\n", flush=True)
    with TemporaryDirectory(dir="/tmp") as folder:
        cluster = SlurmCluster(
            numbered(1, NODES),
            Path(folder, "slurm"),
            extra_conf=["SlurmdTimeout=600"],
            installation=versions[args.slurm],
        )
        with cluster as slurm:
            for row in rows(slurm, Path(folder), faults, args.at_once):
                print(row, flush=True)
                lines.append(row)
    grace = "" if is_outage else f" and a grace of {args.grace:g} s"
    lines += ["", f"Measured with Slurm {args.slurm}{grace}."]
    print(*lines[-2:], sep="\n")
    is_wrong = any("(wrong)" in line for line in lines)
    if args.write and not is_wrong:
        table = "\n".join(lines)
        text = PAGE.read_text(encoding="utf-8")
        marks = re.compile(MARKS.format(args.table), re.S)
        PAGE.write_text(marks.sub(rf"\1\n{table}\n\n\2", text), encoding="utf-8")
    sys.exit(is_wrong)


if __name__ == "__main__":
    main()
