"""Keras 3 gives the same results on two nodes of the real Slurm as in one process.

KERAS_PROGRAMS selects programs, as for test_fit.py, which runs all of them on this machine.
"""

from __future__ import annotations

import re
import shlex
from pathlib import Path
from typing import Callable

import pytest
from keras_marks import KERAS_3_ON_SLURM
from keras_outcomes import (
    PROGRAM,
    SECONDS,
    Outcomes,
    assert_the_very_same,
    assert_whole_batches,
    different,
    outcomes,
    run_alone,
    selected,
)
from kinds import Strings
from slurm_cluster import SlurmCluster

pytestmark = KERAS_3_ON_SLURM

# The step for each number of workers, always on two nodes.
STEPS = {
    2: "-w n9,n10 -N2 -n2",
    3: "-w n9,n10 -N2 -n3",
}

# What ParameterServerStrategy refuses.
REFUSED = {
    "guide_unbuilt_running_eagerly",
    "model_frozen_outside",
    "optimizer_accumulated",
    "optimizer_ema_overwritten",
    "step_eagerly",
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
    "step_random_without_seed",
    "step_random_of_global_seed",
}
# Three workers run only the programs whose results depend on how rows are shared.
THREE = [
    "loss_dice",
    "loss_reduction_*",
    "loss_function_sum",
    "loss_masked_*",
    "loss_added_vector",
    "loss_weighted_*_by_weight",
    "loss_two_outputs",
    "optimizer_accumulated",
    "step_own",
    "step_gan",
    "step_five_per_execution",
    "metric_auc",
    "metric_own_*",
    "step_vae",
    "loss_added_sum",
    "loss_activity_of_batch",
    "step_contrastive",
    "data_on_batch",
    "data_arrays_batches_of_1",
    "data_shuffled_fit",
    "guide_synchronized_*",
]
# Steps and losses of their own, and those that compare rows.
OF_OWN_LOSSES = [
    "loss_activity_of_batch",
    "loss_added_sum",
    "loss_gradient_*",
    "loss_reduction_none",
    "loss_two_outputs",
    "step_contrastive",
    "step_decorated_parts",
    "step_eagerly",
    "step_gan",
    "step_own",
    "step_vae",
]
NAMES = {
    2: OF_OWN_LOSSES,
    3: THREE,
}
Alone = Callable[[Strings], Outcomes]


@pytest.fixture(scope="module")
def alone(tmp_path_factory: pytest.TempPathFactory) -> Alone:
    """Returns a function that runs programs in one process, each set of them once."""
    known: dict[str, Outcomes] = {}

    def results(names: Strings) -> Outcomes:
        key = " ".join(selected(names))
        if key not in known:
            known[key] = run_alone(tmp_path_factory.mktemp("alone"), key.split())
        return known[key]

    return results


@pytest.fixture(
    scope="module",
    params=[2, pytest.param(3, marks=pytest.mark.nightly)],
)
def number(request: pytest.FixtureRequest) -> int:
    """The number of workers."""
    return int(request.param)


@pytest.fixture(scope="module")
def workers(
    number: int, real_slurm: SlurmCluster, tmp_path_factory: pytest.TempPathFactory
) -> list[Outcomes]:
    """What came of the programs, by worker."""
    folder = tmp_path_factory.mktemp("workers")
    step(
        real_slurm,
        STEPS[number],
        folder,
        *selected(NAMES[number]),
    )
    return outcomes(folder, [str(index) for index in range(number)])


def step(slurm: SlurmCluster, where: str, folder: Path, *options: str) -> None:
    slurm.run(
        f"srun --kill-on-bad-exit=1 {where} {shlex.join([*PROGRAM, *options])}",
        env={"TASK_OUTPUT": str(folder)},
        timeout=SECONDS,
    )


def test_programs_give_what_one_process_gives(
    alone: Alone, number: int, workers: list[Outcomes]
) -> None:
    assert different(workers[0], alone(NAMES[number])) == {}


def test_only_what_cannot_be_split_is_computed_whole(workers: list[Outcomes]) -> None:
    assert_whole_batches(workers)


def test_all_workers_end_with_the_very_same(workers: list[Outcomes]) -> None:
    assert_the_very_same(workers)


@pytest.mark.nightly
def test_one_worker_of_a_parameter_server_gives_what_one_process_gives(
    alone: Alone, real_slurm: SlurmCluster, tmp_path: Path
) -> None:
    """A single worker computes the steps in order, with whole batches."""
    step(real_slurm, "-w n8,n9,n10 -N3 -n3", tmp_path, "--ps", *selected(["*"]))
    (chief,) = outcomes(tmp_path, ["chief"])
    for name in {"loop_with_metrics", *DRAWING}:  # a coordinator must schedule the loop
        chief.pop(name, None)
    errors = {name for name, came in chief.items() if "error" in came}
    assert errors == chief.keys() & REFUSED
    assert all(re.match("(Fit|Keras)Error: ", chief.pop(name)["error"]) for name in errors)
    expected = alone(["*"])
    for name in LATE & chief.keys():
        for what in {"batches", "read"} & expected[name].keys():
            chief[name][what] = expected[name][what]
    assert different(chief, expected).keys() <= BUILT_BEFORE
