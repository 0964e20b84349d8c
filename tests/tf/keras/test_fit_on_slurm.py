"""Keras 3 gives the same results on two nodes of the real Slurm as in one process.

KERAS_PROGRAMS selects programs, as for test_fit.py, which runs all of them on this machine.
"""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from keras_marks import KERAS_3_ON_SLURM
from keras_outcomes import (
    PROGRAM,
    differences,
    faults,
    outcomes,
    run_alone,
    selected,
)
from slurm_cluster import SlurmCluster
from told_by_workers import run_on_slurm

pytestmark = KERAS_3_ON_SLURM

# What ParameterServerStrategy refuses: steps that run eagerly, variables from outside the scope,
# such as those of `quantize`, and two kinds of optimizers.
REFUSED = {
    "guide_quantized_and_fitted",
    "guide_trained_in_float8",
    "guide_unbuilt_running_eagerly",
    "model_frozen_outside",
    "optimizer_accumulated",
    "optimizer_ema_overwritten",
    "step_eagerly",
    "step_eagerly_on_rows_drawn_by_each_worker",
}
# It makes the optimizer's variables before the first step, as Keras does under a strategy. In one
# process Keras makes them in the first step, and what `build` assigns there is lost.
BUILT_BEFORE = {
    "optimizer_assigning_in_build",
    "optimizer_schedule_free",
}
# Its logs of a batch, and metrics that a callback reads, are those of an earlier step.
LATE = {
    "metric_auc",
    "metric_weighted_auc",
    "metric_r2",
    "metric_own_vector",
    "metric_weighted_own_vector",
    "callback_reading_metrics",
}
# The coordinator traces steps in threads, where Keras has another generator of random numbers, and
# TensorFlow begins other sequences.
DRAWING = {
    "step_crops",
    "step_random_of_global_seed",
    "step_random_without_seed",
    "step_samples",
}
# Of each kind, those whose results depend on how rows are shared.
NAMES = [
    "loss_added_vector",
    "loss_gradient_clipped",
    "loss_masked_rows",
    "loss_two_outputs",
    "loss_weighted_mse_by_weight",
    "step_contrastive",
    "step_gan",
    "step_vae",
    "step_five_per_execution",
    "metric_weighted_own_vector",
    "data_on_batch",
    "guide_synchronized_*",
]


def test_programs_give_what_one_process_gives(real_slurm: SlurmCluster, tmp_path: Path) -> None:
    """Two of the three workers are on the same node."""
    names = selected(NAMES)
    run_on_slurm(real_slurm, [*PROGRAM, *names], tmp_path, "-w n9,n10 -N2 -n3")
    alone = run_alone(tmp_path, names)
    workers = outcomes(tmp_path, ["0", "1", "2"])
    found = {name: faults(name, workers, alone) for name in names}
    assert {name: fault for name, fault in found.items() if fault} == {}


@pytest.mark.nightly
def test_one_worker_of_a_parameter_server_gives_what_one_process_gives(
    real_slurm: SlurmCluster, tmp_path: Path
) -> None:
    """A single worker computes the steps in order, with whole batches."""
    names = selected(["*"])
    run_on_slurm(real_slurm, [*PROGRAM, "--ps", *names], tmp_path, "-w n8,n9,n10 -N3 -n3")
    (chief,) = outcomes(tmp_path, ["chief"])
    for name in {"loop_with_metrics", *DRAWING}:  # a coordinator must schedule the loop
        chief.pop(name, None)
    errors = {name for name, came in chief.items() if "error" in came}
    assert errors == chief.keys() & REFUSED
    assert all(re.match("(Fit|Keras)Error: ", chief.pop(name)["error"]) for name in errors)
    expected = run_alone(tmp_path, names)
    for name in LATE & chief.keys():
        for what in {"batches", "read"} & expected[name].keys():
            chief[name][what] = expected[name][what]
    found = {name: differences(name, came, expected[name]) for name, came in chief.items()}
    assert {name for name, far in found.items() if far} <= BUILT_BEFORE
