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
    by_handle = {id(variable.handle): variable for variable in function.variables}
    # TensorFlow has a set of them: these are in the order in which the step uses them.
    captured = map(id, function.captured_inputs)
    used = {key: by_handle[key] for key in captured if key in by_handle}
    outside = [
        (variable.name, variable)
        for variable in used.values()
        if not extended.variable_created_in_scope(variable)
    ]
    if outside and strategy.of_several:
        compare(
            strategy.workers,
            "in variables from outside strategy.scope()",
            list(measures(outside)),
            _REMEDY,
        )
    copies = {}
    for key, variable in used.items():
        container = extended.value_container(variable)
        copies[key] = list(strategy.experimental_local_results(container))
        for device in extended.worker_devices[len(copies[key]) :]:
            with tf.device(device):
                copies[key].append(tf.Variable(variable, trainable=variable.trainable))
    return copies


def refresh_copies(strategy: Strategy, copies: Copies) -> None:
    """Gives the copies of variables from outside their values."""
    for first, *others in copies.values():
        if not strategy.extended.variable_created_in_scope(first):
            for other in others:
                other.assign(first)
