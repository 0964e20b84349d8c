"""SLURM_RESOLVER_VERIFY=3: compares the first steps of several workers with one process.

Each worker also computes the traced step itself, on all rows and from the same variables, and ends
the training if a result or the change of a variable differs by more than rounding. What rounding
does to a step depends on the step: Adam makes a full step of a gradient that is 0 but for rounding.
So the traced step is computed again, with trainable variables that are off by a few units in the
last place, and what that changes is allowed for.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import tensorflow as tf
from numpy.linalg import norm

from slurm_resolver.coordination.progress import COMPILING
from slurm_resolver.errors import FitError
from slurm_resolver.log import warn_once
from slurm_resolver.tf.keras.protocols import Model
from slurm_resolver.tf.keras.replica_step import call_traced
from slurm_resolver.tf.keras.replicas import of_first_replica
from slurm_resolver.tf.keras.sharing import Share, Structure
from slurm_resolver.tf.keras.traced_step import PlannedStep, draws, has
from slurm_resolver.tf.keras.weight_comparison import variables_of
from slurm_resolver.tf.partition.effects import changes_more_than_variables
from slurm_resolver.tf.partition.values import LOCAL, Tensors
from slurm_resolver.tf.private_names import Method
from slurm_resolver.tf.reporter import reporter

_LEAST = 3  # steps: what an optimizer keeps of the first step has an effect in the second
_RUNS = 4  # of the traced step; in all but the first, trainable variables are off
_TIMES = 50.0  # as much as other rounding changes is allowed
_EPSILON = 2.0**-21  # what rounding changes in a step, relative to a number
_EPSILON_OF_HALVES = 2.0**-10  # also of products in TF32, the default of GPUs


class Verification:
    """Compares the first steps of one function of a model.

    Args:
        kind: of the steps: "train", "test" or "predict".
        steps: how many are compared.
    """

    def __init__(self, model: Model, kind: str, steps: int) -> None:
        self._name = f"the {kind} step of {model.name!r}"
        self._model = model
        self._steps = max(steps, _LEAST)

    def compute(self, planned: PlannedStep, batch: Share, step: Method) -> Structure:
        """Returns the results of a step, which is compared.

        Args:
            planned: the traced step.
            batch: which this worker has read.
            step: computes it as the workers do.
        """
        if not self._steps:
            return step()
        reason = _why_not(planned, batch)
        if reason:
            warn_once(
                f"SLURM_RESOLVER_VERIFY: {self._name} is not compared with one process: {reason}"
            )
            return step()
        self._steps -= 1
        return self._compare(planned, batch, step)

    def _compare(self, planned: PlannedStep, batch: Share, step: Method) -> Structure:
        """Returns the results of a step.

        Raises:
            FitError: if a variable or a result differs by more than rounding.
        """
        reporter.enter(COMPILING)  # which may take longer than a step
        variables = of_first_replica(self._model.distribute_strategy, planned.function.variables)
        before = _values(variables)
        results = step()
        flat = tf.nest.flatten(results, expand_composites=True)
        after = _values([*variables, *flat])
        graph = str(planned.function.graph.as_graph_def())
        has_tf32 = (
            tf.config.list_logical_devices("GPU")
            and tf.config.experimental.tensor_float_32_execution_enabled()
        )
        has_halves = "HALF" in graph or "BFLOAT16" in graph or has_tf32
        epsilon = _EPSILON_OF_HALVES if has_halves else _EPSILON
        runs = [(before, after)]  # of the workers; those of one process follow
        for run in range(_RUNS):
            random = np.random.default_rng(run)
            begin = []
            for variable, value in zip(variables, before):
                if run and variable.trainable:
                    off = value * (1 + random.uniform(-epsilon, epsilon, value.shape))
                    value = off.astype(value.dtype)
                begin.append(value)
                variable.assign(value)
            of_one = call_traced(planned, batch.batch)
            runs.append((begin, _values([*variables, *of_one])))
        for variable, value in zip(variables, after):
            variable.assign(value)
        # The gradient of a bias before a normalization cancels out, and leaves what was rounded
        # in numbers as large as the gradients of other variables.
        of_trainable = (
            norm(change)
            for variable, change in zip(variables, _changes(*runs[1]))
            if variable.trainable
        )
        largest = max(of_trainable, default=0.0)
        paths = {id(variable): path for path, variable in variables_of(self._model)}
        names = [f"variable {paths.get(id(one), one.name)!r}" for one in variables]
        keys = sorted(results) if isinstance(results, dict) else range(len(flat))
        names += [f"result {key!r}" for key in keys]
        sizes = _changes([], after)
        for name, size, *changes in zip(names, sizes, *itertools.starmap(_changes, runs)):
            found, one, *others = changes
            change = norm(one)
            rounding = _TIMES * max(norm(other - one) for other in others)
            rounding += min(64 * epsilon, 0.05) * change + epsilon * (norm(size) + largest)
            distance = norm(found - one)
            if distance > rounding:
                what = f"{self._name} differs from one process {reporter.where()}".rstrip()
                raise FitError(
                    f"SLURM_RESOLVER_VERIFY: {what}, in the {name}: by {distance:.3g}, where one "
                    f"process has {change:.3g} and rounding changes less than {rounding:.3g}. "
                    "Please report this with the code of the step"
                )
        return results


def _why_not(planned: PlannedStep, batch: Share) -> str:
    """Returns why a step cannot be compared; "" if it can, or is that of one process anyway."""
    if "own" in batch.marks:
        return "each worker reads its own data"
    if "drawn" in batch.marks:
        return "each worker draws parts of the data for itself, such as augmented images"
    plan = planned.plan
    graph = planned.function.graph
    if plan and has(graph, draws):
        return "it has random numbers of tf.random, a function of Python or tf.print"
    if has(graph, changes_more_than_variables):
        return "it changes more than variables, such as a table"
    if plan and LOCAL in map(plan.values.get, itertools.chain(*plan.levels)):
        return (
            "BatchNormalization takes the statistics of each replica's own rows. To compare the "
            "step, pass synchronized=True to these layers"
        )
    return ""


def _values(tensors: Tensors) -> list[Any]:
    return [0.0 if tensor.dtype == tf.string else tensor.numpy() for tensor in tensors]


def _changes(begin: Sequence[Any], end: Sequence[Any]) -> Iterator[npt.NDArray[np.complex128]]:
    """Yields how far numbers have changed, each as a vector without NaN.

    A result has no value at the beginning, and is compared as a variable that was 0.
    """
    for before, after in itertools.zip_longest(begin, end, fillvalue=0.0):
        change = np.subtract(after, before, dtype=complex).ravel()
        yield np.nan_to_num(change, copy=False, nan=1e30, posinf=1e30, neginf=-1e30)
