"""The global generators of random numbers, as a resumed training gives them back."""

from __future__ import annotations

import random
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf
from keras_marks import KERAS_3

from slurm_resolver.tf.training.random_states import (
    random_states,
    restore_random,
    set_random_states,
)

pytestmark = KERAS_3

DRAWS: Any = {
    "random": random.random,
    "numpy": np.random.random,
    "keras": lambda: float(keras.random.uniform([])),
    # the seed that the next operation takes
    "tensorflow": lambda: tf.compat.v1.random.get_seed(None)[1],
}


@pytest.fixture(autouse=True)
def _seeded() -> None:
    keras.utils.set_random_seed(1)
    for draw in DRAWS.values():
        draw()


@pytest.mark.parametrize("name", DRAWS)
def test_each_generator_draws_again_what_it_drew(name: str) -> None:
    saved = random_states()
    drawn = DRAWS[name]()
    assert DRAWS[name]() != drawn
    set_random_states(saved)
    assert DRAWS[name]() == drawn


def test_one_from_which_the_data_has_drawn_since_is_left_alone() -> None:
    saved = random_states()
    drawn = [draw() for draw in DRAWS.values()]
    before = random_states()
    random.random()
    restore_random(saved, before)
    again = [draw() for draw in DRAWS.values()]
    assert [number == other for number, other in zip(drawn, again)] == [False, True, True, True]
