"""What the workers compare before `fit`: each case changes one thing, and its entry changes."""

from __future__ import annotations

import functools
import warnings
from typing import Any, Callable

import pytest
from keras_3 import keras
from kinds import Fields, Strings

from slurm_resolver.tf.keras.configuration import describe_call, describe_model


def loss_of(delta: float) -> Callable[..., Any]:
    def loss(y: Any, prediction: Any) -> Any:
        return keras.ops.mean(
            delta * keras.ops.square(y - prediction),
            axis=-1,
        )

    return loss


def scaled(y: Any, prediction: Any, scale: float) -> Any:
    return scale * keras.ops.mean(y - prediction, axis=-1)


def scaled_by(scale: float) -> Callable[..., Any]:
    return functools.partial(scaled, scale=scale)


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
    built = keras.Sequential(
        [
            keras.Input((4,)),
            *layers,
            keras.layers.Dense(1),
        ],
        name=name,
    )
    built.compile(
        optimizer or keras.optimizers.SGD(0.1),
        loss,
        **compiled,
    )
    return built


def adapted(words: Strings) -> Any:
    lookup = keras.layers.StringLookup()
    lookup.adapt(words)
    return lookup


def differing(one: Fields, other: Fields) -> Strings:
    entries = zip(describe_model(model(**one)), describe_model(model(**other)))
    return [entry.name for entry, of_other in entries if entry.text != of_other.text]


layers = keras.layers
sgd = keras.optimizers.SGD
decay = keras.optimizers.schedules.ExponentialDecay

# What two models have, and the entry that differs. Names and seeds may differ: Keras numbers
# layers, and the weights of all workers are those of the first one.
CASES = """
{}                                     | {"optimizer": sgd(0.1, 0.9)}           | optimizer (SGD).momentum
{"optimizer": sgd(decay(0.1, 1, 0.9))} | {"optimizer": sgd(decay(0.1, 2, 0.9))} | optimizer (SGD).learning_rate.config.decay_steps
{"loss": keras.losses.Huber(1.0)}      | {"loss": keras.losses.Huber(2.0)}      | loss (Huber).fn_kwargs.delta
{"loss": loss_of(1.0)}                 | {"loss": loss_of(2.0)}                 | loss (loss_of.<locals>.loss).delta
{"loss": scaled_by(1.0)}               | {"loss": scaled_by(2.0)}               | loss (partial).keywords.scale
{"layers": [layers.Dropout(0.1)]}      | {"layers": [layers.Dropout(0.2)]}      | layers.2 (Dropout).rate
{"layers": [Scale(1.0)]}               | {"layers": [Scale(2.0)]}               | layers.2 (Scale).by
{"layers": [adapted(list("aab"))]}     | {"layers": [adapted(list("abb"))]}     | layers.2 (StringLookup).vocabulary
{"layers": [layers.Dense(2)]}          | {"layers": [layers.Dense(2, dtype="mixed_bfloat16")]} | layers.2 (Dense).dtype
{}                                     | {"run_eagerly": True}                  | run_eagerly
{"layers": [layers.Dense(2, name="a"), layers.Dropout(0.1, seed=1)], "name": "a"} | {"layers": [layers.Dense(2, name="b"), layers.Dropout(0.1, seed=2)], "name": "b"} |
"""  # noqa: E501


@pytest.mark.parametrize("case", CASES.strip().splitlines())
def test_what_differs_is_named(case: str) -> None:
    one, other, expected = case.split(" |")
    assert differing(eval(one), eval(one)) == []
    entries = [f"model.{expected.strip()}"] if expected else []
    assert differing(eval(one), eval(other))[:1] == entries


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


def test_description_shows_no_warning_and_repeats_none() -> None:
    """Keras warns of a lambda; in Python, a warning is shown once."""
    described = model(layers=[layers.Lambda(lambda x: x)])
    with warnings.catch_warnings(record=True) as shown:
        warnings.simplefilter("default")
        for _ in range(2):
            warnings.warn("of the program", stacklevel=1)
            describe_model(described)
    assert [str(one.message) for one in shown] == ["of the program"]
