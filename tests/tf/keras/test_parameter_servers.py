"""Keras 3's `fit` trains with a ParameterServerStrategy on the real Slurm."""

from __future__ import annotations

import re
from types import SimpleNamespace

import numpy as np
import pytest
from folders import quiet_helper
from keras_marks import KERAS_3_ON_SLURM
from keras_outcomes import outcomes
from kinds import Fields
from slurm_cluster import SlurmCluster
from told_by_workers import run_on_slurm

from slurm_resolver.errors import FitError, KerasError
from slurm_resolver.tf.keras.parameter_server import check_model

pytestmark = KERAS_3_ON_SLURM

PROGRAM = quiet_helper("keras_parameter_servers.py")
PARTS = SimpleNamespace(path="embedding/embeddings", value=object())
OUTSIDE = SimpleNamespace(path="dense/bias", value=SimpleNamespace(handle=1))
Told = tuple[Fields, str]


@pytest.fixture(scope="module")
def told(real_slurm: SlurmCluster, tmp_path_factory: pytest.TempPathFactory) -> Told:
    """The chief's results and all output, of a chief, a parameter server and two workers."""
    folder = tmp_path_factory.mktemp("servers")
    done = run_on_slurm(real_slurm, PROGRAM, folder, "--label -w n8,n9 -N2 -n4 -m cyclic")
    (chief,) = outcomes(folder, ["chief"])
    return chief, done.stdout + done.stderr


def test_no_count_is_lost_between_workers(told: Told) -> None:
    assert told[0]["nothing_is_lost_between_workers"] == {
        "iterations": 800,
        "counted": [1200.0] * 2,
    }


def test_nothing_is_under_way_when_it_is_saved(told: Told) -> None:
    assert told[0]["nothing_is_under_way_when_it_is_saved"] == [150, 300, 450, 600, 750, 800]


def test_evaluation_and_prediction_are_those_of_a_copy_in_one_process(told: Told) -> None:
    here, copy = told[0]["evaluation_and_prediction"]
    assert here[0] == pytest.approx(copy[0], abs=1e-6)
    np.testing.assert_allclose(here[1], copy[1], atol=1e-6)


def test_tensorflow_warns_of_no_step_on_the_chief(told: Told) -> None:
    assert "without using `ClusterCoordinator.schedule`" not in told[1]


def test_workers_read_datasets_of_their_own(told: Told) -> None:
    steps, accuracies, (_, accuracy) = told[0]["datasets_of_the_workers"]
    assert steps == 100
    assert len(accuracies) == 20
    assert accuracy > accuracies[0] + 0.1


def test_tensorflows_tutorial(told: Told) -> None:
    """It runs after the errors below: the next fit works."""
    epochs, learns, steps, difference, summaries = told[0]["the_tutorial"]
    assert (epochs, learns, steps, summaries) == (5, True, 100, 1)
    assert difference < 1e-6


def test_errors_say_what_to_do(told: Told) -> None:
    found, output = told
    assert found["data_that_ends"] == (
        "ValueError: a worker's dataset has ended before the steps of fit; expected one without "
        "an end: let dataset_fn return dataset.repeat()"
    )
    assert re.match(
        "FitError: the variable 'adam.*/iteration' of .* was created outside",
        found["an_optimizer_made_outside_the_scope"],
    )
    assert found["a_step_that_fails"].startswith("InvalidArgumentError: ")
    assert "Received a label value of 7" in found["a_step_that_fails"]
    for worker in (0, 1):
        assert (
            f"told ParameterServerStrategy in worker {worker}, which serves; expected the chief"
            in output
        )


@pytest.mark.parametrize(
    ("strategy", "model", "message"),
    [
        ({}, {"run_eagerly": True}, "run_eagerly=True under ParameterServerStrategy"),
        ({"num_replicas_in_sync": 2}, {}, "2 GPUs in each worker.*start a task for each GPU"),
        ({}, {"variables": [PARTS]}, "embedding/embeddings is partitioned.*variable_partitioner"),
        (
            {},
            {"variables": [OUTSIDE]},
            "'dense/bias' of 'model' was created outside strategy.scope",
        ),
        (
            {},
            {"optimizer": SimpleNamespace(ema_overwrite_frequency=3)},
            "ema_overwrite_frequency=3",
        ),
    ],
)
def test_what_cannot_be_trained_is_refused(strategy: Fields, model: Fields, message: str) -> None:
    how = SimpleNamespace(
        **{
            "num_replicas_in_sync": 1,
            "extended": SimpleNamespace(variable_created_in_scope=lambda _: False),
            **strategy,
        }
    )
    with pytest.raises((FitError, KerasError), match=message):
        check_model(
            how,
            SimpleNamespace(
                **{
                    "name": "model",
                    "optimizer": None,
                    "run_eagerly": False,
                    "variables": [],
                    **model,
                }
            ),
        )
