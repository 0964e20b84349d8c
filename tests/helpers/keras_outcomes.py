"""Runs keras_programs in one process, and compares the results of several workers with it.

keras_programs is imported where it is used, because Keras 2 lacks what the programs use.
"""

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

# Every worker computes whole batches: their tensors have no number of rows, or different ones, or
# the step has no graph, or an operation with an unknown effect.
WHOLE = {
    "data_ragged",
    "data_sparse_inputs",
    "data_sparse_widths",
    "guide_unbuilt_running_eagerly",
    "step_crops",
    "step_draws_in_xla",
    "step_eagerly",
    "step_eagerly_on_rows_drawn_by_each_worker",
    "step_of_functions_that_run_eagerly",
    "step_with_unequal_rows",
    "step_with_unequal_rows_drawn_by_each_worker",
}


def selected(patterns: Strings) -> Strings:
    """Returns the programs that match these patterns, or those that KERAS_PROGRAMS has instead."""
    from keras_programs.catalog import matching

    return matching(os.environ.get("KERAS_PROGRAMS", "").split() or patterns)


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


def differences(name: str, came: Fields, expected: Fields) -> Fields:
    """Returns what differs from one process more than the program may, and how far."""
    from keras_programs.common import (
        DIFFERS_BY_DESIGN,
        TOLERANCES,
        TRACED_TWICE,
        WEIGHTED_BY_ROWS,
    )

    if "error" in came or "error" in expected:
        return {
            "error": came.get("error"),
            "error in one process": expected.get("error"),
        }
    reason = DIFFERS_BY_DESIGN.get(name)
    # In one process, Keras 3.16 traces a step for each number of rows, and so differs.
    if reason and (not came["whole"] or reason in (TRACED_TWICE, WEIGHTED_BY_ROWS)):
        return {}
    allowed = TOLERANCES.get(name, 1e-4)
    far = {
        what: difference(value, came.get(what))
        for what, value in expected.items()
        if what != "whole"
    }
    return {what: size for what, size in far.items() if size > allowed}


def faults(name: str, workers: list[Outcomes], alone: Outcomes) -> Fields:
    """Returns what is wrong with a program in these workers; by design, some differ from alone.

    Only the programs in WHOLE compute whole batches, and all workers end with the very same.
    """
    ended = {"error": "the run ended before or in this program"}
    came, *others = [worker.get(name, ended) for worker in workers]
    found = differences(name, came, alone.get(name, ended))
    for index, other in enumerate(others, start=1):
        unlike = [what for what in {**came, **other} if other.get(what) != came.get(what)]
        if unlike:
            found[f"worker {index} differs from worker 0"] = unlike
    if came.get("whole", name in WHOLE) != (name in WHOLE):
        found["computes whole batches"] = came["whole"]
    return found
