"""Whole steps of Keras models: those of several replicas equal one process."""

from __future__ import annotations

import functools
import sys
from collections.abc import Iterator
from typing import Any, Callable

import numpy as np
import pytest
import simulated_replicas
import tensorflow as tf
from keras_3 import keras
from pytest_mock import MockerFixture
from simulated_replicas import SimulatedReplicas
from step_programs import CASES, batches, images_model, planned

from slurm_resolver.tf import private_names
from slurm_resolver.tf.keras.one_process import as_one_process, moments_of_own_rows
from slurm_resolver.tf.partition.emission import Split
from slurm_resolver.tf.partition.step import plan_step


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
                    marks=marks,
                )
            )
    return found


def compare(program: Callable[[], Any], replicas: int) -> SimulatedReplicas:
    """Asserts that steps of several replicas equal one process."""
    step, traced, plan, data = planned(program)
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
    for variables in simulated.variables:
        assert_close(variables, simulated.originals)
    return simulated


@pytest.mark.parametrize(("name", "replicas"), in_turn())
def test_a_step_of_several_replicas_equals_one_process(name: str, replicas: int) -> None:
    simulated = compare(CASES[name].program, replicas)
    assert len(simulated.plan.levels) <= CASES[name].collectives
    first = simulated.variables[0]
    for variables in simulated.variables:
        for one, other in zip(variables, first):
            np.testing.assert_array_equal(one, other)


def test_a_gradient_is_sent_once() -> None:
    """Adam computes both of its moving averages of it."""
    plan = planned(CASES["dense"].program)[2]
    (sent,) = plan.levels
    assert len(sent) == 6  # the loss, four gradients, and the number of right predictions


class Shifted(keras.layers.BatchNormalization):  # type: ignore[misc]
    def call(self, inputs: Any, **given: Any) -> Any:
        return super().call(2 * inputs, **given) + 1


class Masked(keras.layers.Wrapper):  # type: ignore[misc]
    def call(self, inputs: Any, training: bool = False) -> Any:
        mask = inputs[..., 0] > 0
        result = self.layer(
            inputs,
            training=training,
            mask=mask,
        )
        return tf.identity(result)


class InFunction(keras.layers.Wrapper):  # type: ignore[misc]
    def call(self, inputs: Any, training: bool = False) -> Any:
        function = tf.function(
            self.layer,
            jit_compile=True,
        )
        return function(inputs, training=training)


def normalizing(make: Callable[[], Any], model: Any = keras.Model) -> Callable[[], Any]:
    """Returns a program whose model has two of these layers."""

    def program() -> Any:
        return images_model(
            keras.layers.Conv2D(4, 3),
            make(),
            keras.layers.ReLU(),
            keras.layers.Conv2D(4, 3, strides=2),
            make(),
            model=model,
            optimizer=keras.optimizers.SGD(0.01),
        )

    return program


@pytest.fixture
def own_rows(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Lets BatchNormalization take the statistics of a replica's rows, as in `fit`."""
    kind = keras.layers.BatchNormalization
    moments = functools.partialmethod(
        lambda layer, original, *given: moments_of_own_rows(original, layer, *given),
        private_names.MOMENTS.get(),
    )
    monkeypatch.setattr(
        kind,
        private_names.MOMENTS.name,
        moments,
    )
    with as_one_process():
        yield


@pytest.mark.parametrize(
    ("make", "collectives"),
    [
        (keras.layers.BatchNormalization, 1),
        (lambda: Shifted(axis=1, scale=False), 1),
        (lambda: Masked(keras.layers.BatchNormalization()), 1),
        (lambda: keras.layers.BatchNormalization(renorm=True), 1),
        # One call comes after the other, which assigns moving averages.
        (lambda: InFunction(keras.layers.BatchNormalization()), 2),
    ],
)
@pytest.mark.usefixtures("own_rows")
def test_a_replica_normalizes_by_its_own_statistics(make: Any, collectives: int) -> None:
    step, traced, plan, data = planned(normalizing(make))
    assert len(plan.levels) == collectives
    # Both replicas have the same rows, so that their statistics are those of all rows.
    batch = [
        np.repeat(
            one[:6],
            2,
            axis=0,
        )
        for one in data
    ]
    tensors = tuple(map(tf.constant, batch))
    simulated = SimulatedReplicas(
        traced,
        plan,
        2,
    )
    for _ in range(3):
        outputs = simulated(batch)
        logs = step(tensors)
        assert_close(outputs[1], tf.nest.flatten(logs))
    assert_close(simulated.variables[1], simulated.originals)


class Penalized(keras.Model):  # type: ignore[misc]
    """A model whose loss is a gradient with respect to its inputs."""

    def train_step(self, data: Any) -> Any:
        images, _ = data
        with tf.GradientTape() as tape:
            with tf.GradientTape() as inner:
                inner.watch(images)
                outputs = tf.tanh(self(images, training=True))
            slopes = inner.gradient(outputs, images)
            loss = tf.reduce_mean(tf.square(slopes))
        variables = self.trainable_variables
        gradients = tape.gradient(loss, variables)
        self.optimizer.apply(gradients, variables)
        return {"loss": loss}


class InCondition(keras.layers.Wrapper):  # type: ignore[misc]
    def call(self, inputs: Any, training: bool = False) -> Any:
        def normalized() -> Any:
            return self.layer(inputs, training=training)

        is_positive = tf.reduce_sum(self.layer.gamma.value) > 0
        return tf.cond(
            is_positive,
            normalized,
            lambda: inputs,
        )


@pytest.mark.parametrize(
    "program",
    [
        normalizing(keras.layers.BatchNormalization, Penalized),
        normalizing(lambda: InCondition(keras.layers.BatchNormalization())),
    ],
)
@pytest.mark.usefixtures("own_rows")
def test_where_a_replica_cannot_its_statistics_are_those_of_all_rows(program: Any) -> None:
    compare(program, 2)


@pytest.mark.parametrize("name", ["lstm", "masked_gru_both_ways"])
def test_recurrent_layers_of_gpus_are_computed_by_part(name: str, mocker: MockerFixture) -> None:
    """With a GPU, Keras calls cuDNN. Without one, what a replica computes is only written."""
    layers = sys.modules["keras.src.backend.tensorflow.rnn"]
    mocker.patch.object(layers, "_is_gpu_available", return_value=True)
    _, traced, plan, _ = planned(CASES[name].program)
    reasons = {step.node.kind: step.reason for step in plan.steps if isinstance(step, Split)}
    assert reasons["CudnnRNNV3"] is reasons["CudnnRNNBackpropV3"] is None
    assert len(plan.levels) == 1
    SimulatedReplicas(traced, plan, 2).write()


def test_an_error_names_the_lines_of_the_program() -> None:
    def layer(rows: Any) -> Any:
        return tf.debugging.check_numerics(rows, "bad row")

    def step(rows: Any) -> Any:
        layer(rows)
        are_small = tf.reduce_all(rows < 9.0)
        return tf.cond(
            are_small,
            lambda: rows,
            lambda: layer(rows / 0.0),
        )

    function = tf.function(step, autograph=False)
    traced = function.get_concrete_function(tf.TensorSpec([None]))
    plan = plan_step(traced)
    simulated = SimulatedReplicas(
        traced,
        plan,
        2,
    )
    first = step.__code__.co_firstlineno
    cases = (
        ([1.0, np.nan], first + 1),
        ([1.0, 10.0], first + 3),
    )
    for rows, line in cases:
        with pytest.raises(tf.errors.InvalidArgumentError, match="bad row") as caught:
            simulated([np.array(rows, "float32")])
        lines = str(caught.value)
        assert f'{__file__}", line {line}, in' in lines
        of_step = lines.index(f"line {line}, in")
        of_layer = lines.index(f"line {first - 2}, in layer")
        assert of_step < of_layer


def assert_close(found: Any, expected: Any) -> None:
    for one, other in zip(found, expected):
        np.testing.assert_allclose(
            one,
            other,
            rtol=1e-4,
            atol=5e-5,
        )


def test_all_replicas_draw_in_the_order_of_the_rounds() -> None:
    """TensorFlow would begin several rounds at once, of which any may draw first."""
    step = tf.function(lambda x: tf.map_fn(lambda row: row * tf.random.uniform((), seed=1), x))
    traced = step.get_concrete_function(tf.TensorSpec([None, 2]))
    plan = plan_step(traced)
    with tf.Graph().as_default() as graph:
        own = simulated_replicas.own_rows(5, 0, 1)
        simulated_replicas.write_all(plan, [own], [[tf.zeros([5, 2])]])
    loops = [one for one in graph.get_operations() if one.type == "While"]
    assert {one.get_attr("parallel_iterations") for one in loops} == {1}
