"""The functions that operations call, in an order that is the same in all workers."""

from __future__ import annotations

import functools
from typing import Any

import pytest
import tensorflow as tf

from slurm_resolver.tf.keras.called_functions import with_called

pytestmark = pytest.mark.tensorflow


def test_branches_come_in_the_order_of_their_names() -> None:
    """The order of an operation's attributes is random."""

    def step(x: Any) -> Any:
        for seed in range(6):
            x += tf.cond(
                x > 0,
                functools.partial(tf.random.normal, [], seed=2 * seed),
                functools.partial(tf.random.normal, [], seed=2 * seed + 1),
            )
        return x

    graph = tf.function(step).get_concrete_function(tf.TensorSpec([])).graph
    seeds = [
        one.get_attr("seed2")
        for one in with_called(graph.get_operations())
        if one.type == "RandomStandardNormal"
    ]
    assert seeds == [1, 0, 3, 2, 5, 4, 7, 6, 9, 8, 11, 10]
