"""On the real Slurm, calls that cannot be one training raise an error in every worker."""

from __future__ import annotations

from pathlib import Path

import pytest
from folders import quiet_helper
from keras_marks import KERAS_3_ON_SLURM
from keras_outcomes import outcomes
from kinds import Completed, Records
from slurm_cluster import SlurmCluster
from told_by_workers import run_on_slurm

pytestmark = KERAS_3_ON_SLURM

IN_ALL = "Make each call in all workers"  # what to do if one worker alone makes a call
PROGRAM = quiet_helper("keras_bad_fit")

TRAINED = (
    "alone_on_purpose",
    "built_outside",
    "metric_in_xla",
    "noise_of_its_own",
    "own_data_compared",
    "own_data_of_one_size",
    "optimizer_outside",
    "own_optimizer_outside",
)
IN_BOTH = {
    "model_outside": "built outside strategy.scope(): this process would train it alone",
    "batch_outside": "train_on_batch of 'sequential",
    "own_function": "own make_train_function() or train_function, each worker would run its steps",
    "own_function_on_batch": "the model 'own_function_1': with its own make_train_function() or tr",
    "assigned_function": "with its own make_train_function() or train_function, each worker would ",
    "other_metrics": "in model.metrics: ['mae'] in worker 0, ['mae', 'mape'] in worker 1",
    "other_data": "in the data: 4 batches in worker 0, 2 batches in worker 1",
    "other_rows": "the workers differ in step 1 of epoch 1, in the digest of x: ",
    "own_data": "in the data: 4 batches in worker 0, 2 batches in worker 1",
    "divided_eagerly": "The workers have already divided the data: change this before the call",
    "metric_in_function": "tf.function in a step reads or resets the metric 'watched', which",
    "own_data_eagerly": "Each worker reads its own data, so none has a whole batch. Use Auto",
    "other_rate": "in step 1 of epoch 1, in the learning rate: 0.01 in worker 0, 0.1 in worker 1",
    "other_seeds": "in the seeds of tf.random: [(1, ",
    "own_sums": "train_step puts values of all replicas together by itself (",
    "other_weights": "the workers differ after epoch 1, in sequential_",
    "other_weights_before": "/bias: 0 in worker 0, 5 in worker 1. ",
    "other_frozen_model": "/bias: 0 in worker 0, 5 in worker 1. ",
    "other_momentum": "in model.optimizer (SGD).momentum: 0.0 in worker 0, 0.9 in worker 1",
    "class_weight_in_one": "in fit.class_weight: None in worker 0, 'given' in worker 1",
    "restored_in_one": "in fit.callbacks that restore a training: none in worker 0, BackupAndResum",
    "other_order_in_predict": "the workers differ in step 1 of predict, in the digest of x: ",
    "other_order_of_python": "the batches of the workers differ in x, y, which Python makes, and",
    "other_calls": "worker 0 calls evaluate, and worker 1 calls predict. Make each call in all",
}


def start(slurm: SlurmCluster, folder: Path, *way: str, status: int | None = 1) -> Completed:
    options = "--kill-on-bad-exit=0 -w n9,n10 -N2 -n2"
    return run_on_slurm(slurm, [*PROGRAM, *way], folder, options, status)


@pytest.fixture(scope="module")
def workers(real_slurm: SlurmCluster, tmp_path_factory: pytest.TempPathFactory) -> Records:
    """The errors of both workers; a process tries all ways in turn."""
    folder = tmp_path_factory.mktemp("bad")
    start(real_slurm, folder, status=0)
    return outcomes(folder, ["0", "1"])


@pytest.mark.parametrize("name", IN_BOTH)
def test_every_worker_says_what_is_wrong(workers: Records, name: str) -> None:
    for worker in workers:
        assert worker[name].startswith("FitError: ")
        assert IN_BOTH[name] in worker[name]


def test_callbacks_that_differ_are_named(workers: Records) -> None:
    for worker in workers:
        assert worker["other_weights"].endswith(" Callbacks: none in worker 0, Does in worker 1.")


def test_what_fails_everywhere_fails_with_its_own_error_and_the_workers_go_on(
    workers: Records,
) -> None:
    assert [worker["all_raise"] for worker in workers] == [
        "ValueError: in worker 0",
        "ValueError: in worker 1",
    ]
    for worker in workers:
        assert "of the layer" in worker["layer_raises"]
        assert worker["wrapped_function"] == "trained 4 steps"
        for name in TRAINED:
            assert worker[name] == "trained", name
        assert worker["stops_after_an_epoch"] == 1


@pytest.mark.parametrize("failing", ["0", "1"])
def test_an_exception_in_one_worker_ends_all_with_its_reason(
    real_slurm: SlurmCluster, tmp_path: Path, failing: str
) -> None:
    """Without --kill-on-bad-exit, the failing worker also ends."""
    done = start(real_slurm, tmp_path, f"fails {failing}")
    reason = f"worker {failing} has failed in fit: RuntimeError: of the callback"
    assert f"slurm_resolver.errors.FitError: {reason}" in done.stderr
    assert "RuntimeError: of the callback\n" in done.stderr.replace(reason, "")
    # The traceback of the other worker would only say where it waited.
    assert done.stderr.count("most recent call last") == 1


@pytest.mark.parametrize(
    ("why", "failing", "message"),
    [
        ("stop", 2, "set stop_training at the end of an epoch"),
        ("data", 2, "check whether each worker's data is complete"),
        ("killed", 1, "is gone in step 4 of epoch 1: its process has ended"),
        ("step", 2, "worker 0 begins a step in a callback"),
        ("within", 2, "worker 0 calls evaluate within fit, and worker 1 ends epoch 1."),
        ("after", 1, "this worker calls evaluate: worker 1 (rank 1 on n10) is gone, and cannot"),
        ("batch", 1, "this worker compares its model before step 1 of train_on_batch: worker 1"),
        (
            "scope",
            2,
            "worker 0 makes the variable 'kernel' in strategy.scope(), and worker 1 calls fit.",
        ),
    ],
)
def test_what_one_worker_does_alone_is_an_error_with_a_remedy(
    real_slurm: SlurmCluster, tmp_path: Path, why: str, failing: int, message: str
) -> None:
    """The error comes at once; TensorFlow's heartbeats would take ten seconds."""
    done = start(real_slurm, tmp_path, why, status=None)
    assert done.returncode != 0
    errors = [line for line in done.stderr.splitlines() if "errors.FitError: " in line]
    assert len(errors) == failing, done.stderr[-4000:]
    assert any(message in error for error in errors), errors
    if why == "killed":
        assert IN_ALL not in done.stderr
