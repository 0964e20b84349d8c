"""Variables that a step uses, and that were made outside of the scope, such as a teacher's.

The workers compare them once. If a worker has several replicas, the first one uses the variable
itself, and each other one a copy, which takes its value before each step: the program may change it
between steps. In a step, all replicas change their copies alike.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import tensorflow as tf

from slurm_resolver.tf.keras.weight_comparison import compare_variables


@dataclass(eq=False)
class Copies:
    """A variable, and its copies for the other replicas of a worker."""

    values: list[tf.Variable]

    def refresh(self) -> None:
        """Gives the copies the value of the variable."""
        for copy in self.values[1:]:
            copy.assign(self.values[0])


def copies_outside(strategy: Any, function: Any) -> list[Copies]:
    """Compares the variables that a traced step has from outside, and returns their new copies.

    Raises:
        FitError: in every worker, if their values differ from worker to worker.
    """
    is_inside = strategy.extended.variable_created_in_scope
    # TensorFlow has a set of them: these are in the order in which the step uses them.
    places = {id(one): place for place, one in enumerate(function.captured_inputs)}
    variables = [one for one in function.variables if not is_inside(one)]
    variables.sort(key=lambda one: places[id(one.handle)])
    if strategy.of_several and variables:
        compare_variables(strategy.workers, variables)
    made = []
    for one in variables:
        if strategy.sharing.local_replicas > 1 and id(one.handle) not in strategy.copies:
            copies = Copies([one])
            for device in strategy.extended.worker_devices[1:]:
                with tf.device(device):
                    copies.values.append(tf.Variable(one, trainable=one.trainable))
            strategy.copies[id(one.handle)] = copies
            made.append(copies)
    return made


def refresh_copies(strategy: Any, function: Any) -> None:
    """Gives the copies of a traced step's variables from outside their values."""
    for one in function.variables:
        copies = strategy.copies.get(id(one.handle))
        if isinstance(copies, Copies):
            copies.refresh()
