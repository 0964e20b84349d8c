"""Runs Keras' own tests in one process and in two workers in step, and compares what they give.

SOURCES is a folder of Keras' repository, or "installed": the wheel holds its tests. The installed
Keras runs, and the slurm_resolver that PYTHONPATH finds first. What OUTPUT and OUTPUT.alone hold at
the start is not measured again. Only what passes alone is tried on two workers.
"""

from __future__ import annotations

import argparse
import faulthandler
import importlib.metadata
import importlib.util
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
import zlib
from pathlib import Path
from typing import Any, Dict, Generator, List, TextIO
from unittest.mock import MagicMock

import pytest

Record = Dict[str, Any]
ABSENT = ("jax.experimental.sparse", "jax.experimental", "jax", "torch", "grain", "pandas")


class Lockstep:
    """A pytest plugin that runs each test in the strategy's scope, at one time in all workers."""

    def __init__(self, args: argparse.Namespace, mocked: List[str]) -> None:
        self.limit, self.mocked = args.limit, mocked
        self.found: Record = {}
        rank = 0 if args.alone else int(os.environ["SLURM_PROCID"])
        parts = [open(f"{args.output}.{one}", "r+", 1) for one in range(2 - args.alone)]  # noqa: SIM115
        self.own, self.others = parts.pop(rank), parts
        self.hang = open(f"{args.output}.{rank}.hang", "w")  # noqa: SIM115
        alone = (one for one in read(f"{args.output}.alone") if one["outcome"] != "passed")
        self.done = {record["test"] for record in [*read(args.output), *alone]}

    def pytest_collection_modifyitems(self, items: List[pytest.Item]) -> None:
        items[:] = [item for item in items if item.nodeid not in self.done]
        for name in self.mocked:
            del sys.modules[name]

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> Generator[None, Any, Any]:
        self.found = {"test": item.nodeid, "outcome": "passed", "error": "", "theirs": False}
        self.found["seconds"] = -round(time.monotonic(), 2)
        print(json.dumps({"test": item.nodeid}), file=self.own)
        faulthandler.dump_traceback_later(self.limit, exit=True, file=self.hang)
        sys.modules["keras"].utils.set_random_seed(zlib.crc32(item.nodeid.encode()) % 2**31)
        result = yield
        faulthandler.cancel_dump_traceback_later()
        self.found["seconds"] += round(time.monotonic(), 2)
        print(json.dumps(self.found), file=self.own)
        faulthandler.dump_traceback_later(self.limit + 10, exit=True, file=self.hang)
        every = [self.found, *(next_outcome(other) for other in self.others)]
        faulthandler.cancel_dump_traceback_later()
        if len({one["outcome"] for one in every}) > 1 or any(one["theirs"] for one in every):
            os._exit(75)  # the collectives of the workers may no longer be the same ones
        return result

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_makereport(self, call: Any) -> Generator[None, Any, Any]:
        report = yield
        if report.outcome != "passed" and self.found["outcome"] != "failed" and call.excinfo:
            kind, text = call.excinfo.type, f"{call.excinfo.value}"
            lines = [line for line in text.splitlines() if line.strip() and "[[{{" not in line]
            line = (lines or [""])[-1 if "Graph execution" in text[:20] else 0][:300]
            error, theirs = f"{kind.__name__}: {line}", kind.__module__.startswith("tensorflow.")
            self.found.update(outcome=report.outcome, error=error, theirs=theirs)
            self.found["traceback"] = report.longreprtext[-6000:]
        return report


def run_in_scope() -> None:
    """Enters the scope once setUp has cleared the default graph, and keeps XLA away from CPUs."""
    strategy = importlib.import_module("slurm_resolver").MultiWorkerMirroredStrategy()
    from keras.src import testing
    from keras.src.trainers.trainer import Trainer

    set_up, compiles = testing.TestCase.setUp, Trainer.compile

    def entered(test: Any) -> None:
        test.doCleanups()  # some tests call setUp again
        set_up(test)
        test.enterContext(strategy.scope())

    def compiled(model: Any, *args: Any, **how: Any) -> None:
        jit = how.pop("jit_compile", "auto")  # XLA has no collectives on CPUs
        compiles(model, *args, jit_compile=False if jit is True else jit, **how)

    testing.TestCase.setUp, Trainer.compile = entered, compiled


def task(args: argparse.Namespace) -> None:
    """Runs the tests that have no outcome yet; what only other backends import is a mock."""
    if not args.alone:
        run_in_scope()
    mocked = [name for name in ABSENT if not importlib.util.find_spec(name.partition(".")[0])]
    importlib.import_module("keras")
    sys.modules.update((name, MagicMock()) for name in mocked)
    sys.modules["conftest"] = MagicMock(skip_if_backend=lambda *_: lambda test: test)
    plugin = Lockstep(args, mocked)
    options = ["-q", "--rootdir=.", "-c", os.devnull, "--import-mode=importlib", "--tb=short"]
    options += ["-k", args.k, "-pno:cacheprovider", "-pno:faulthandler"]
    if pytest.main([*options, *args.files], plugins=[plugin]) in (0, 1, 5):  # no error in a file
        print('{"test": "", "end": true}', file=plugin.own)
    time.sleep(2)  # the end of one worker would end the other
    os._exit(0)


def next_outcome(other: TextIO) -> Record:
    """Waits until another worker has finished its test, and returns what it says."""
    line = ""
    while not (line.endswith("\n") and '"outcome"' in line):
        time.sleep(0.005)
        line += other.readline()
    return dict(json.loads(line.splitlines()[-1]))


def read(path: Any) -> List[Record]:
    lines = Path(path).read_text().splitlines() if Path(path).exists() else []
    return [json.loads(line) for line in lines]


def merged(test: str, parts: List[List[Record]], hangs: List[str]) -> Record:
    """Returns what came of a test in all processes together."""
    each: List[Record] = []
    for part, dump in zip(parts, hangs):
        ends = [record for record in part if record["test"] == test and "outcome" in record]
        lost, where = "hangs" if dump else "ended", dump.rpartition("Thread")[2][:4000]
        each += ends or [{"outcome": lost, "error": lost, "traceback": where}]
    worst = min(each, key=lambda one: "failed hangs ended skipped passed".index(one["outcome"]))
    if len({one["outcome"] for one in each}) > 1:
        errors = (f"{rank}: {one['error'] or 'passed'}" for rank, one in enumerate(each))
        worst = {**worst, "error": "; ".join(errors)}
    return {**worst, "test": test, "each": each}


def measure(args: argparse.Namespace, folder: str, output: Path, alone: bool) -> Dict[str, Record]:
    """Starts the processes, again after each test that leaves them unusable, until all is told."""
    environ = {**os.environ, "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1", "CUDA_VISIBLE_DEVICES": ""}
    environ.update(TF_CPP_MIN_LOG_LEVEL="2", TF_ENABLE_ONEDNN_OPTS="0", KERAS_BACKEND="tensorflow")
    workers = ["-m", "slurm_resolver", "run", "-n", "2", "--", sys.executable]
    command = [sys.executable, *([] if alone else workers), __file__, "-k", args.k]
    command += ["--task", f"--limit={args.limit}", *(["--alone"] if alone else [])]
    command += ["installed", str(output), *args.files]
    ranks = range(2 - alone)
    while True:
        for name in [f"{output}.{rank}{end}" for rank in ranks for end in ("", ".hang")]:
            Path(name).write_text("")
        with open(f"{output}.log", "w") as log:
            subprocess.run(command, env=environ, cwd=folder, stdout=log, stderr=log, check=False)
        parts = [read(f"{output}.{rank}") for rank in ranks]
        hangs = [Path(f"{output}.{rank}.hang").read_text() for rank in ranks]
        started = dict.fromkeys(record["test"] for part in parts for record in part)
        with open(output, "a") as found:
            for test in filter(None, started):
                found.write(json.dumps(merged(test, parts, hangs)) + "\n")
        if all(part and "end" in part[-1] for part in parts):
            return {record["test"]: record for record in read(output)}
        if not started:
            sys.exit(f"{output}.log: " + Path(f"{output}.log").read_text()[-4000:])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("sources", help='a folder that has keras/src in it, or "installed"')
    parser.add_argument("output", type=lambda path: Path(path).absolute())
    parser.add_argument("files", nargs="+", help="trainers/trainer_test.py, callbacks/*_test.py …")
    parser.add_argument("--alone", action="store_true", help="one process only")
    parser.add_argument("-k", default="", metavar="EXPRESSION", help="as for pytest")
    parser.add_argument("--limit", type=int, default=60, help="seconds until a test hangs")
    parser.add_argument("--task", action="store_true", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.task:
        task(args)
    installed = str(importlib.metadata.distribution("keras").locate_file(""))
    source = Path(installed if args.sources == "installed" else args.sources, "keras", "src")
    found = sorted({path for pattern in args.files for path in source.glob(pattern)})
    args.files = [str(path.relative_to(source)) for path in found]
    with tempfile.TemporaryDirectory() as folder:
        for name in args.files:
            Path(folder, name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(source / name, Path(folder, name))
        alone = measure(args, folder, Path(f"{args.output}.alone"), True)
        workers = alone if args.alone else measure(args, folder, args.output, False)
    for test, one in workers.items():
        if one["outcome"] != "passed":
            print(test, alone[test]["outcome"], one["outcome"], one["error"], sep=" | ")


if __name__ == "__main__":
    main()
