"""Variables that a step uses, and that were made outside of the scope, such as a teacher's.

The workers compare them once. If a worker has several replicas, the first one uses the variable
itself, and each other one a copy, which takes its value before each step: the program may change it
between steps. In a step, all replicas change their copies alike.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import tensorflow as tf
from tensorflow.types.experimental import ConcreteFunction

from slurm_resolver.tf.keras.differences import compare
from slurm_resolver.tf.keras.protocols import Strategy
from slurm_resolver.tf.keras.weight_comparison import measures

_REMEDY = (
    "Give them the same values in all workers: load the same file, or call "
    "keras.utils.set_random_seed(1) before you build the model."
)
# The variables of this worker's replicas, by the id of the first one's handle.
Copies = Mapping[int, Sequence[tf.Variable]]


def copies_of(strategy: Strategy, function: ConcreteFunction) -> Copies:
    """Returns the copies of a traced step's variables, and compares those from outside.

    Raises:
        FitError: in every worker, if their values differ from worker to worker.
    """
    extended = strategy.extended
    # TensorFlow has a set of them: these are in the order in which the step uses them.
    places = {id(captured): place for place, captured in enumerate(function.captured_inputs)}
    variables = sorted(function.variables, key=lambda variable: places.get(id(variable.handle), 0))
    if strategy.of_several:
        _compare_outside(strategy, variables)
    copies = {}
    for variable in variables:
        values = list(strategy.experimental_local_results(extended.value_container(variable)))
        for device in extended.worker_devices[len(values) :]:
            with tf.device(device):
                values.append(tf.Variable(variable, trainable=variable.trainable))
        copies[id(variable.handle)] = values
    return copies


def _compare_outside(strategy: Strategy, variables: Sequence[tf.Variable]) -> None:
    outside = [
        (variable.name, variable)
        for variable in variables
        if not strategy.extended.variable_created_in_scope(variable)
    ]
    if outside:
        compare(
            strategy.workers,
            "in variables from outside strategy.scope()",
            list(measures(outside)),
            _REMEDY,
        )


def refresh_copies(strategy: Strategy, copies: Copies) -> None:
    """Gives the copies of variables from outside their values."""
    for first, *others in copies.values():
        if not strategy.extended.variable_created_in_scope(first):
            for other in others:
                other.assign(first)
