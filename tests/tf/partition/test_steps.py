"""Whole steps of Keras models: those of several replicas equal one process."""

from __future__ import annotations

import os
import sys
from typing import Any

import numpy as np
import pytest
import tensorflow as tf
from folders import HELPERS
from keras_3 import keras
from local_run import captured, in_step
from simulated_replicas import SimulatedReplicas
from step_programs import CASES, IMAGES, LABELS, batches, classifier, planned

from slurm_resolver.tf.partition.step import of_own_rows


def in_turn() -> list[Any]:
    """Returns the cases for 3 replicas in `make test`, and the others for `make nightly`."""
    found = []
    for name, one in CASES.items():
        for replicas in (2, 3, 4):
            often = replicas == 3 and not one.nightly
            marks = () if often else pytest.mark.nightly
            found.append(
                pytest.param(
                    name,
                    replicas,
                    id=f"{name}-{replicas}",
                    marks=marks,
                )
            )
    return found


@pytest.mark.parametrize(("name", "replicas"), in_turn())
def test_a_step_of_several_replicas_equals_one_process(name: str, replicas: int) -> None:
    step, traced, plan, data = planned(CASES[name].program)
    assert len(plan.levels) <= CASES[name].collectives
    simulated = SimulatedReplicas(
        traced,
        plan,
        replicas,
    )
    for batch in batches(data):
        outputs = simulated(tf.nest.flatten(batch))
        tensors = tf.nest.map_structure(tf.constant, batch)
        logs = tf.nest.flatten(step(tensors))
        for own in outputs:
            assert_close(own, logs)
    first = simulated.variables[0]
    for variables in simulated.variables:
        assert_close(variables, simulated.originals)
        for one, other in zip(variables, first):
            np.testing.assert_array_equal(one, other)


def test_a_replica_normalizes_by_its_own_statistics() -> None:
    class OwnStatistics(keras.layers.BatchNormalization):  # type: ignore[misc]
        def _moments(self, inputs: Any, mask: Any) -> Any:
            return of_own_rows(lambda one: tf.nn.moments(one, [0, 1, 2]))(inputs)

    def program() -> Any:
        inputs = keras.Input((8, 8, 3))
        hidden = keras.layers.ReLU()(OwnStatistics()(keras.layers.Conv2D(4, 3)(inputs)))
        hidden = OwnStatistics()(keras.layers.Conv2D(4, 3, strides=2)(hidden))
        flat = keras.layers.Flatten()(hidden)
        model = classifier(inputs, flat, optimizer=keras.optimizers.SGD(0.01))
        return model, (IMAGES, LABELS)

    step, traced, plan, data = planned(program)
    assert len(plan.levels) == 1
    # Both replicas have the same rows, so that their statistics are those of all rows.
    batch = [np.repeat(one[:6], 2, axis=0) for one in data]
    simulated = SimulatedReplicas(traced, plan, 2)
    for _ in range(3):
        outputs = simulated(batch)
        logs = step(tuple(map(tf.constant, batch)))
        assert_close(outputs[1], tf.nest.flatten(logs))
    assert_close(simulated.variables[1], simulated.originals)


def assert_close(found: Any, expected: Any) -> None:
    for one, other in zip(found, expected):
        np.testing.assert_allclose(
            one,
            other,
            rtol=1e-4,
            atol=5e-5,
        )


# Different kinds of collectives: sums, rows that are gathered, and loops.
IN_PROCESSES = ["dense", "dropout", "batch_normalization", "simclr", "lstm"]


@pytest.mark.nightly
@pytest.mark.parametrize("tasks", [2, 3])
def test_a_step_of_several_processes_equals_one_process(tasks: int) -> None:
    program = str(HELPERS / "partition_processes.py")
    command = in_step(
        f"-n {tasks}",
        sys.executable,
        program,
        *IN_PROCESSES,
    )
    done = captured(
        command,
        status=0,
        env={**os.environ, "TF_CPP_MIN_LOG_LEVEL": "3"},
    )
    lines = [line for line in done.stdout.splitlines() if line.startswith("differs by ")]
    assert len(lines) == tasks * len(IN_PROCESSES)
    for line in lines:
        assert float(line.split()[2]) < 1e-4, line
