"""Decides whether a step may be split: what the analysis of its graph knows of a tensor.

What compares rows ends the tracing of a split step with `ComputeWholeError`: then every worker
computes the whole batch. What no rule derives does so too, unless it is Keras' own code, or the
user vouches for it with ``custom_losses="mean"``.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import tensorflow as tf

from slurm_resolver.tf.keras.called_functions import graph_of_function
from slurm_resolver.tf.keras.program_lines import line_of_program
from slurm_resolver.tf.keras.replica_step import Step
from slurm_resolver.tf.keras.sharing import TENSORS
from slurm_resolver.tf.rows.analysis import Analysis
from slurm_resolver.tf.rows.values import COMPONENT, COUNT, MEAN, SAME, SUM, Value, rows


@dataclass(eq=False)
class ComputeWholeError(BaseException):
    """Ends the tracing of a step that must compute the whole batch.

    No code of the program or of Keras that handles exceptions may catch it.

    Attributes:
        reason: why.
        vouchable: whether ``custom_losses="mean"`` would let the step be split.
    """

    reason: str
    vouchable: bool = False


def value_of(step: Step, tensor: Any, what: str, *, certain: bool = False) -> Value:
    """Returns what is known of a tensor: SAME, ROWS or SUM.

    Of a tensor that no rule derives, in a step of Keras or with ``custom_losses="mean"``, it is
    assumed that it is a mean over rows, or by row.

    Args:
        what: the tensor is, for the reason.
        certain: whether nothing may be assumed.

    Raises:
        ComputeWholeError: if the step must compute the whole batch.
    """
    if not isinstance(tensor, tf.Tensor):
        return _assumed(tensor)
    value = step.analysis.value_of(tensor)
    if not value.reason:
        return value
    check_may_assume(step, what, value, value.reason.operation, certain=certain)
    return _assumed(tensor)


def check_may_assume(
    step: Step, what: str, value: Value, operation: Any, *, certain: bool = False
) -> None:
    """Raises an error unless no rule derives a value, and Keras made it, or the user vouches."""
    line = line_of_program(operation)
    no_rule = value.reason is not None and not value.reason.refuted
    if no_rule and not certain and (step.vouched or line is None):
        return
    place = f" in {line}" if line else ""
    text = value.reason.text if value.reason else "it depends on the batch"
    raise ComputeWholeError(f"{what}: {text} ({operation.type}{place})", vouchable=no_rule)


def put_together(step: Step, tensor: Any, what: str, *, adds: bool = True) -> Any:
    """Returns a result of the whole batch, given the one of this replica's rows.

    Args:
        what: the tensor is, for the reason.
        adds: whether it may be a sum or a mean; otherwise, it has rows, or is the same everywhere.

    Raises:
        ComputeWholeError: if it cannot be put together.
    """
    if step.whole or not isinstance(tensor, TENSORS):
        return tensor
    value = value_of(step, tensor, what)
    kind = summed_as(value)
    if kind == SAME:
        return tensor
    if adds and kind:
        return step.add([step.addend(tensor, kind)])[0]
    if value == rows() and isinstance(tensor, tf.Tensor) and tensor.dtype != tf.string:
        return step.gather(tensor)
    raise refuse(what)


def summed_as(value: Value) -> Value | None:
    """Returns SUM, MEAN or SAME, as which all replicas' values add up; None if they do not."""
    if value.is_sum:
        return SUM
    if value.is_mean:
        return MEAN
    return SAME if value.is_plain else None


def refuse(what: str) -> ComputeWholeError:
    """Returns the error for a tensor that cannot be put together from the workers' parts."""
    return ComputeWholeError(f"{what} is not a sum or mean over rows, nor one entry for each row")


def _assumed(tensor: Any) -> Value:
    """Returns what a tensor is in a step of Keras, or one that the user vouches for.

    When a step is traced, the number of its rows is unknown.
    """
    if tensor.shape.rank == 0:
        return COUNT if tensor.dtype.is_integer else MEAN
    return SAME if tensor.shape.rank and tensor.shape[0] else rows()


def analysis_of(part: Any) -> Analysis:
    """Returns the analysis of a split step, given this replica's part of the batch."""
    analysis = Analysis(tf.compat.v1.get_default_graph(), graph_of_function)
    for value in filter(tf.is_tensor, tf.nest.flatten(part)):
        if isinstance(value, tf.Tensor):
            analysis.declare(value, rows() if value.shape.rank != 0 else SAME)
            continue
        for component in tf.nest.flatten(value, expand_composites=True):
            analysis.declare(component, COMPONENT)
    return analysis


def check_assignments(step: Step, statistics: Iterable[Any]) -> None:
    """Raises ComputeWholeError if a split step assigns what it has computed from its rows.

    Exceptions are the variables of metrics, which are added up, and statistics of
    BatchNormalization.
    """
    if step.whole:
        return
    exempt = {
        id(component.handle)
        for variable in (*statistics, *step.summed)
        for component in step.components(variable)
    }
    for assignment in step.analysis.assigned():
        value = assignment.value
        if not value.is_plain and assignment.variable not in exempt:
            check_may_assume(step, "a new value of a variable", value, assignment.operation)
