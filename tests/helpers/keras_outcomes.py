"""Runs keras_programs in one process, and compares the results of several workers with it."""

from __future__ import annotations

import json
import math
import os
from pathlib import Path
from typing import Any

from folders import quiet_helper
from kinds import Fields, Strings
from local_run import captured

# The results of each program by its name, in one process.
Outcomes = dict[str, Fields]

PROGRAM = quiet_helper("keras_programs")
SECONDS = 1500

# Every worker computes whole batches: their tensors have no number of rows, or the step has no
# graph.
WHOLE = {
    "data_ragged",
    "data_sparse_inputs",
    "data_sparse_widths",
    "guide_unbuilt_running_eagerly",
    "step_eagerly",
    "step_of_functions_that_run_eagerly",
}


def selected(names: Strings) -> Strings:
    """Returns the names of the programs, or those that KERAS_PROGRAMS gives instead."""
    return os.environ.get("KERAS_PROGRAMS", "").split() or names


def outcomes(folder: Path, files: Strings) -> list[Any]:
    """Returns what programs have written as JSON to these files."""
    return [json.loads((folder / name).read_text()) for name in files]


def run_alone(folder: Path, names: Strings) -> Outcomes:
    """Runs the programs in one process."""
    captured(
        [*PROGRAM, "--alone", *names],
        status=0,
        env={
            "PATH": "/usr/bin:/bin",
            "PYTHONPATH": os.environ.get("PYTHONPATH", ""),  # the Keras under test
            "TASK_OUTPUT": str(folder),
            "CUDA_VISIBLE_DEVICES": "",
        },
        timeout=SECONDS,
    )
    return dict(outcomes(folder, ["alone"])[0])


def listed() -> dict[str, Strings]:
    """Returns each program's tolerance and the reason why it differs by design."""
    done = captured(
        [*PROGRAM, "--list"],
        status=0,
        timeout=SECONDS,
    )
    rows = [line.split("\t") for line in done.stdout.splitlines()]
    return {name: rest for name, *rest in rows}


def flat(value: Any) -> list[float]:
    """Returns all numbers in nested lists and dicts, always in the same order."""
    if isinstance(value, dict):
        return [number for key in sorted(value) for number in flat(value[key])]
    if isinstance(value, list):
        return [number for item in value for number in flat(item)]
    return [value]


def difference(one: Any, other: Any) -> float:
    """Returns the largest difference between two structures' numbers, relative if above 1."""
    left = flat(one)
    right = flat(other)
    if len(left) != len(right):
        return math.inf
    largest = 0.0
    for a, b in zip(left, right):
        if math.isnan(a) != math.isnan(b):
            return math.inf
        if a != b and not math.isnan(a):
            largest = max(
                largest,
                abs(a - b) / max(1.0, abs(a)),
            )
    return largest


def different(found: Outcomes, alone: Outcomes) -> Fields:
    """Returns the results that differ from one process, by the program's name."""
    told: Fields = {}
    for name, (tolerance, by_design) in listed().items():
        if name not in found or (by_design and not found[name]["whole"]):
            continue
        expected = alone[name]
        came = found[name]
        if "error" in came or "error" in expected:
            told[name] = came.get("error"), expected.get("error")
        else:
            far = {
                what: difference(
                    expected[what],
                    came.get(what),
                )
                for what in expected
            }
            far.pop("whole", None)
            if max(far.values()) > float(tolerance or 1e-4):
                told[name] = far
    return told


def assert_whole_batches(workers: list[Outcomes]) -> None:
    """Only the programs in WHOLE, of those that have run, compute whole batches in every worker."""
    for worker in workers:
        whole = {name for name, came in worker.items() if came["whole"]}
        assert whole == WHOLE & worker.keys()


def assert_the_very_same(workers: list[Outcomes]) -> None:
    """This includes programs that differ from one process by design."""
    for other in workers[1:]:
        assert [name for name in other if other[name] != workers[0][name]] == []
