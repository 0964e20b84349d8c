"""What the workers compare before `fit`: each case changes one thing, and its entry changes."""

from __future__ import annotations

import functools
from typing import Any, Callable

import pytest
from keras_3 import keras
from kinds import Fields, Strings

from slurm_resolver.tf.keras.configuration import describe_call, describe_model


def loss_of(delta: float) -> Callable[..., Any]:
    def loss(y: Any, prediction: Any) -> Any:
        return keras.ops.mean(delta * keras.ops.square(y - prediction), axis=-1)

    return loss


def scaled(y: Any, prediction: Any, scale: float) -> Any:
    return scale * keras.ops.mean(y - prediction, axis=-1)


class Scale(keras.layers.Layer):  # type: ignore[misc]
    def __init__(self, by: float, **how: Any) -> None:
        super().__init__(**how)
        self.by = by

    def call(self, x: Any) -> Any:
        return self.by * x


def model(
    layers: Any = (),
    optimizer: Any = None,
    loss: Any = "mse",
    name: str = "model",
    **compiled: Any,
) -> Any:
    built = keras.Sequential([keras.Input((4,)), *layers, keras.layers.Dense(1)], name=name)
    built.compile(optimizer or keras.optimizers.SGD(0.1), loss, **compiled)
    return built


def differing(one: Fields, other: Fields) -> Strings:
    entries = zip(describe_model(model(**one)), describe_model(model(**other)))
    return [entry.name for entry, of_other in entries if entry.text != of_other.text]


sgd = keras.optimizers.SGD
decay = keras.optimizers.schedules.ExponentialDecay

CASES: dict[str, tuple[Fields, Fields, str]] = {
    "momentum": ({}, {"optimizer": sgd(0.1, momentum=0.9)}, "model.optimizer (SGD).momentum"),
    "schedule": (
        {"optimizer": sgd(decay(0.1, 10, 0.9))},
        {"optimizer": sgd(decay(0.1, 20, 0.9))},
        "model.optimizer (SGD).learning_rate.config.decay_steps",
    ),
    "argument of a loss": (
        {"loss": keras.losses.Huber(1.0)},
        {"loss": keras.losses.Huber(2.0)},
        "model.loss (Huber).fn_kwargs.delta",
    ),
    "value that a loss encloses": (
        {"loss": loss_of(1.0)},
        {"loss": loss_of(2.0)},
        "model.loss (loss_of.<locals>.loss).delta",
    ),
    "partial loss": (
        {"loss": functools.partial(scaled, scale=1.0)},
        {"loss": functools.partial(scaled, scale=2.0)},
        "model.loss (partial).keywords.scale",
    ),
    "dropout": (
        {"layers": [keras.layers.Dropout(0.1)]},
        {"layers": [keras.layers.Dropout(0.2)]},
        "model.layers.2 (Dropout).rate",
    ),
    "layer of one's own": (
        {"layers": [Scale(1.0)]},
        {"layers": [Scale(2.0)]},
        "model.layers.2 (Scale).by",
    ),
    "type of numbers": (
        {"layers": [keras.layers.Dense(2)]},
        {"layers": [keras.layers.Dense(2, dtype="mixed_bfloat16")]},
        "model.layers.2 (Dense).dtype",
    ),
    "eager": ({}, {"run_eagerly": True}, "model.run_eagerly"),
}


@pytest.mark.parametrize("name", CASES)
def test_what_differs_is_named(name: str) -> None:
    one, other, expected = CASES[name]
    assert differing(one, one) == []
    assert differing(one, other)[:1] == [expected]


def test_names_and_seeds_of_layers_may_differ() -> None:
    """Keras numbers layers, and the weights of all workers are those of the first one."""
    assert (
        differing(
            {
                "layers": [keras.layers.Dense(2, name="a"), keras.layers.Dropout(0.1, seed=1)],
                "name": "first",
            },
            {
                "layers": [keras.layers.Dense(2, name="b"), keras.layers.Dropout(0.1, seed=2)],
                "name": "second",
            },
        )
        == []
    )


def test_the_order_of_the_keys_may_differ() -> None:
    """Such as of a dictionary that is made from a set."""
    described = [
        list(describe_call("fit", {"x": {}, "callbacks": [], **arguments}))
        for arguments in ({"epochs": 1, "verbose": 0}, {"verbose": 0, "epochs": 1})
    ]
    assert described[0] == described[1]


def test_a_model_that_is_not_compiled_can_be_described() -> None:
    entries = describe_model(keras.Sequential([keras.layers.Dense(1)]))
    assert {"model.optimizer": "None"}.items() <= {one.name: one.text for one in entries}.items()


def test_a_long_list_is_one_entry() -> None:
    lookup = keras.layers.StringLookup(vocabulary=[f"word {n}" for n in range(2000)])
    assert len(list(describe_model(model(layers=[lookup])))) < 200
