"""Runs keras_programs in one process, and compares the results of several workers with it.

keras_programs is imported where it is used, because Keras 2 lacks what the programs use.
"""

from __future__ import annotations

import json
import math
import os
from pathlib import Path
from typing import Any

import numpy as np
import tensorflow as tf
from folders import quiet_helper
from kinds import Fields, Strings
from told_by_workers import run

# The results of each program by its name, in one process.
Outcomes = dict[str, Fields]

PROGRAM = quiet_helper("keras_programs")

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
    run([*PROGRAM, "--alone", *names], folder, workers=0)
    return dict(outcomes(folder, ["alone"])[0])


def difference(one: Any, other: Any) -> float:
    """Returns the largest difference between two structures' numbers, relative if above 1."""
    left, right = (np.array(tf.nest.flatten(value), float) for value in (one, other))
    if left.shape != right.shape or (np.isnan(left) != np.isnan(right)).any():
        return math.inf
    differs = (left != right) & ~np.isnan(left)
    left, right = left[differs], right[differs]
    # For an infinite number in one of them, NumPy warns, which is an error in tests.
    return float(np.max(abs(left - right) / np.maximum(1.0, abs(left)), initial=0.0))


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
