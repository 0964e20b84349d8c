"""Examines whether a step can be split by rows: its losses must be means over the batch's rows.

Only then the mean of the workers' gradients is that of the whole batch. Keras' losses and layers
are means, or see the rows of all replicas (see `whole_batch`). Other code is examined before its
first step: the loss of some rows must be the mean of the losses of two parts of these rows.
"""

from __future__ import annotations

import contextlib
from typing import Any, Iterator, List, Optional, Tuple

import numpy as np
import tensorflow as tf
from tensorflow.python.eager import context

from slurm_resolver.tf.keras.sharing import count_rows, part_of_batch
from slurm_resolver.tf.keras.step import Step, in_first_replica, run_in

_FEWEST, _MOST = 8, 16  # the number of examined rows, if the batch has that many
# How far a loss may be from its parts' mean, relative to the larger of the two.
_EXACT, _HALF_PRECISION, _NOISY = 1e-3, 2e-2, 5e-2
# The number of times a loss with random numbers is computed, and of standard errors that differ.
_DRAWS, _ERRORS = 24, 5.5

_INSTEAD = (
    "Expected a mean over rows, such as tf.reduce_mean, or one value for each row in add_loss. "
    "What relates rows to each other belongs in a subclass of keras.losses.Loss, which sees the "
    "rows of all workers."
)


def may_be_no_mean(model: Any, kind: str) -> bool:
    """Returns whether a model's step or loss is custom code; the step shows its layers' losses."""
    methods = [getattr(model, name) for name in (f"{kind}_step", "compute_loss")]
    return not all(method.__module__.startswith("keras.") for method in methods)


def why_no_mean(model: Any, kind: str, batch: Any) -> Optional[str]:
    """Returns which loss of a step is not a mean over rows, and what to write instead; else None.

    The batch is the one that the step would get in one process. The model does not change.
    """
    sharing, count = model.distribute_strategy.sharing, count_rows(batch)
    rows = min(count, max(_FEWEST, min(_MOST, count // sharing.replicas)))
    if rows < 2:
        return None
    middle = max(1, rows * 3 // 8)  # a part may have no share of what only a few rows contain
    start = min(count * sharing.first // sharing.replicas, count - rows)  # each worker others
    ends = (0, rows), (0, middle), (middle, rows)
    parts = [part_of_batch(batch, start + first, start + last) for first, last in ends]
    step = f"{kind}_step of {model.name!r}"
    found: List[List[Any]] = []
    try:
        with _undone(model):
            while len(found) < 2 or (len(found) < _DRAWS and not _equal(*found[:2]).all()):
                draws = range(3 * len(found) + 1, 3 * len(found) + 4)
                found.append([_losses(model, kind, *each) for each in zip(parts, draws)])
                if not found[0][0]:
                    return None
        losses, sums = np.moveaxis(np.asarray(found), -1, 0)  # each by draw, part and loss
    except Exception as error:
        return f"{step} cannot be examined: {type(error).__name__}: {error}. {_INSTEAD}"
    weights = np.where(sums, 1.0, np.array([[1.0], [middle / rows], [1.0 - middle / rows]]))
    whole, first, second = np.moveaxis(losses * weights, 1, 0)
    of_parts = first + second
    half = any("16" in str(layer.compute_dtype) for layer in model._flatten_layers())
    for place in np.flatnonzero(_differ(whole, of_parts, _HALF_PRECISION if half else _EXACT)):
        return (
            f"a loss of {step} is no mean over rows: it is {whole[0, place]:.5g} for {rows} rows, "
            f"and {of_parts[0, place]:.5g} from two parts of them. {_INSTEAD}"
        )
    return None


def _equal(one: Any, other: Any) -> Any:
    return np.isclose(one, other, rtol=1e-5, atol=0, equal_nan=True)


def _differ(whole: Any, of_parts: Any, exact: float) -> Any:
    """Returns for each loss whether it differs from its parts; each has a row for each draw."""
    difference = whole - of_parts
    scale = np.maximum(np.abs(whole), np.abs(of_parts)).mean(axis=0)
    error = difference.std(axis=0, ddof=1) / np.sqrt(len(difference))
    random = np.maximum(_ERRORS * error, _NOISY * scale)
    limit = np.where(_equal(whole[0], whole[1]), exact * scale, random)
    return np.abs(difference.mean(axis=0)) > limit + 1e-7


def _losses(model: Any, kind: str, part: Any, draw: int) -> Any:
    """Returns the losses that a step computes for some rows, and whether each is a sum."""
    rows, first = count_rows(part), model.distribute_strategy.sharing.first
    with in_first_replica(model.distribute_strategy):
        whole = {"rows": rows, "first": 0, "count": rows, "weight": 1.0, "own": rows}
        step = Step(model, first, **whole, draw=draw, examined=([], []))
        logs = run_in(step, lambda: getattr(model, f"{kind}_step")(part))
        losses, numbers = step.examined
        if kind == "test":
            own = [value for value in tf.nest.flatten(logs) if id(value) not in step.alike]
            losses = numbers + [value for value in own if _is_number(value)]
        return [(float(tf.reduce_sum(loss)), loss.shape.rank != 0) for loss in losses]


def _is_number(value: Any) -> bool:
    return isinstance(value, tf.Tensor) and value.dtype.is_floating and value.shape.rank == 0


@contextlib.contextmanager
def _undone(model: Any) -> Iterator[None]:
    """Undoes the block's changes to variables and to TensorFlow's random numbers."""
    random = context.context()._rng.getstate()
    variables = [variable.value for variable in (*model.variables, *model.metrics_variables)]
    tracked = tf.train.TrackableView(model).descendants()
    variables += [part for part in tracked if isinstance(part, tf.Variable)]
    copies = {id(copy): copy for each in variables for copy in _copies(model, each)}
    before = [(copy, tf.identity(copy)) for copy in copies.values()]
    try:
        yield
    finally:
        for copy, value in before:
            copy.assign(value)
        for metric in model.metrics:
            own = [copy for one in metric.variables for copy in _copies(model, one.value)]
            if any(id(copy) not in copies for copy in own):
                metric.reset_state()  # it is new
        context.context()._rng.setstate(random)


def _copies(model: Any, variable: Any) -> Tuple[Any, ...]:
    """Returns the parts of a variable in this worker's replicas."""
    return tuple(model.distribute_strategy.experimental_local_results(variable))
