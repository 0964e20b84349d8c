"""Variables from outside the scope, in a worker of two replicas."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import tensorflow as tf

from slurm_resolver.tf.keras.outside_variables import copies_of, refresh_copies

STRATEGY: Any = SimpleNamespace(
    of_several=False,
    experimental_local_results=lambda variable: (variable,),
    extended=SimpleNamespace(
        value_container=lambda variable: variable,
        variable_created_in_scope=lambda variable: False,
        worker_devices=("/cpu:0", "/cpu:0"),
    ),
)


def test_each_replica_but_the_first_has_a_copy_which_follows_the_program() -> None:
    used = tf.Variable(1.0)
    step = tf.function(lambda: used + 1.0).get_concrete_function()
    ((first, copy),) = copies_of(STRATEGY, step).values()
    assert first is used
    used.assign(5.0)
    assert float(copy) == 1.0
    refresh_copies(STRATEGY, {id(used.handle): (first, copy)})
    assert float(copy) == 5.0
