"""SLURM_RESOLVER_VERIFY=3: compares the first steps of several workers with one process.

The first worker also computes the traced step itself, on all rows and from the same variables, and
ends the training if a result or the change of a variable differs by more than rounding. What
rounding does to a step depends on the step: Adam makes a full step of a gradient that is 0 but for
rounding. So the traced step is computed again, with trainable variables that are off by a few units
in the last place, and what that changes is allowed for::

    before ── the workers' step ────────────> found       is kept
       ├───── the traced step ──────────────> expected    found - expected, beside
       └─ ±ε ─ the traced step, three times ─> others      others - expected: rounding
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from slurm_resolver.errors import FitError
from slurm_resolver.log import warn_once
from slurm_resolver.tf.keras.model_step import PlannedStep
from slurm_resolver.tf.keras.replica_step import call_traced
from slurm_resolver.tf.keras.sharing import Share
from slurm_resolver.tf.keras.weight_comparison import paths_of
from slurm_resolver.tf.partition.values import LOCAL
from slurm_resolver.tf.peers import MARK
from slurm_resolver.tf.private_names import Method
from slurm_resolver.tf.progress import reporter

_LEAST = 3  # steps: what an optimizer keeps of the first step has an effect in the second
_RUNS = 4  # of the traced step; in all but the first, trainable variables are off
_TIMES = 20.0  # as much as other rounding changes is allowed
# The unit in the last place, relative, by the bytes of a number.
_EPSILON = {2: 2.0**-10, 4: 2.0**-23, 8: 2.0**-52}


class Verification:
    """Compares the first steps of one function of a model.

    Args:
        kind: of the steps: "train", "test" or "predict".
        steps: how many are compared.
    """

    def __init__(self, model: Any, kind: str, steps: int) -> None:
        self._name = f"the {kind} step of {model.name!r}"
        self._model = model
        self._steps = max(steps, _LEAST)

    def compute(self, planned: PlannedStep, batch: Any, step: Method) -> Any:
        """Returns the results of a step, which is compared.

        Args:
            planned: the traced step.
            batch: of which this worker has all rows, if it is a `Share`.
            step: computes it as the workers do.
        """
        reason = _why_not(planned, batch)
        if reason:
            warn_once(
                f"SLURM_RESOLVER_VERIFY: {self._name} is not compared with one process: {reason}"
            )
            return step()
        local = self._model.distribute_strategy.experimental_local_results
        variables = [local(one)[0] for one in planned.function.variables]
        paths = paths_of(self._model)
        names = [f"the variable {paths.get(id(one), one.name)!r}" for one in variables]
        before = [one.read_value() for one in variables]
        results = step()
        found = tf.nest.flatten(results, expand_composites=True)
        after = [one.read_value() for one in variables]
        zeros = [tf.zeros_like(one) for one in found]
        labels = sorted(results) if isinstance(results, dict) else []
        names += [f"the result {label!r}" for label in (labels or range(len(found)))]
        has_halves = "DT_HALF" in str(graph := planned.function.graph.as_graph_def())
        epsilon = _EPSILON[2] if has_halves or "DT_BFLOAT16" in str(graph) else 0.0

        def compare() -> Any:
            arrays = [*before, *zeros, *after, *found]
            for run in range(_RUNS):
                start = [
                    _rounded(value, one, epsilon, [place, run])
                    for place, (value, one) in enumerate(zip(before, variables))
                ]
                _assign(variables, start)
                expected = call_traced(planned, batch.batch)
                arrays += [*start, *zeros, *(one.read_value() for one in variables), *expected]
            _assign(variables, after)
            return tf.numpy_function(check, arrays, tf.bool)

        def check(*arrays: Any) -> bool:
            self._check(names, epsilon, arrays)
            return True

        tf.cond(tf.numpy_function(self._begins, [], tf.bool), compare, lambda: True)
        return results

    def _begins(self) -> bool:
        """Counts a step, and returns whether it is compared."""
        self._steps -= 1
        return self._steps >= 0

    def _check(self, names: Sequence[str], epsilon: float, arrays: Sequence[Any]) -> None:
        """Raises FitError if variables or results differ by more than rounding.

        Args:
            names: of variables and results.
            epsilon: the unit in the last place, if a step has numbers of 16 bits; else 0.
            arrays: for each step what it begins with, and what it ends with: those of the workers,
                the traced one, and those with other rounding.
        """
        differ = {}
        count = len(names)
        columns = zip(*(arrays[first : first + count] for first in range(0, len(arrays), count)))
        for name, column in zip(names, columns):
            if column[0].dtype == object:  # strings
                continue
            wide = [one.astype(complex) for one in column]
            found, expected, *others = (end - start for start, end in zip(wide[::2], wide[1::2]))
            change = _distance(expected, 0.0)
            rounding = _TIMES * max(_distance(other, expected) for other in others)
            if column[0].dtype.kind not in "biu":
                unit = _EPSILON[min(column[0].dtype.itemsize, 8)]
                rounding += min(256 * (epsilon or unit), 0.05) * change
                rounding += 4 * unit * _distance(wide[0], 0.0)
            distance = _distance(found, expected)
            if distance > rounding:
                differ[name] = (distance / (change or 1.0), distance, change, rounding)
        if not differ:
            return
        name = max(differ, key=lambda name: differ[name])
        _, distance, change, rounding = differ[name]
        raise FitError(
            f"{MARK}SLURM_RESOLVER_VERIFY: {self._name} differs from one process "
            f"{reporter.where()}, in {name} ({len(differ)} differ): by {distance:.3g}, where one "
            f"process has {change:.3g} and rounding changes less than {rounding:.3g}. Please "
            "report this with the code of the step"
        )


def _why_not(planned: PlannedStep, batch: Any) -> str:
    """Returns why a step cannot be compared; "" if it can."""
    if not isinstance(batch, Share):
        return "each worker reads its own data"
    if planned.draws:
        return "it has unseeded random numbers, a function of Python or tf.print"
    if planned.plan and LOCAL in planned.plan.values.values():
        return (
            "BatchNormalization takes the statistics of each replica's own rows. To compare the "
            "step, pass synchronized=True to these layers"
        )
    return ""


def _distance(one: Any, other: Any) -> float:
    """Returns the largest distance between the numbers of two arrays; NaN is equal to NaN."""
    is_same = (one == other) | (np.isnan(one) & np.isnan(other))
    with np.errstate(invalid="ignore"):
        distances = np.where(is_same, 0.0, np.abs(one - other))
    return float(np.max(np.nan_to_num(distances, nan=np.inf), initial=0.0))


def _rounded(value: Any, variable: Any, epsilon: float, seed: Sequence[int]) -> Any:
    """Returns the value of a trainable variable with other rounding; as it is in run 0."""
    if not seed[1] or not variable.trainable or not variable.dtype.is_floating:
        return value
    off = epsilon or 4 * _EPSILON[variable.dtype.size]
    return value * (1 + tf.random.stateless_uniform(tf.shape(value), seed, -off, off, value.dtype))


def _assign(variables: Sequence[Any], values: Sequence[Any]) -> None:
    for variable, value in zip(variables, values):
        variable.assign(value)
