"""Operations with effects, and those whose results only the first replica has.

What an unseeded random operation or a Python function returns is not the same in all replicas. The
first replica computes it, and the others have zeros in its place: so it is a SUM. Which stateful
operations do the same in all replicas is listed here; others stop the plan.
"""

from __future__ import annotations

from collections.abc import Container
from typing import Any

import tensorflow as tf

from slurm_resolver.tf.partition.operation import Operation
from slurm_resolver.tf.partition.values import SAME, SUM, PlanError, Split, names

_RANDOM = names("""
    Multinomial ParameterizedTruncatedNormal RandomGamma RandomPoissonV2 RandomShuffle
    RandomStandardNormal RandomUniform RandomUniformInt TruncatedNormal
    """)
_PYTHON = frozenset(("EagerPyFunc", "PyFunc", "PyFuncStateless"))
_OTHERS = frozenset(("NonDeterministicInts", "Timestamp"))
# What has an effect outside of the step happens once.
_ONCE = names("""
    PrintV2 WriteAudioSummary WriteHistogramSummary WriteImageSummary WriteScalarSummary
    WriteSummary
    """)

# What reads and changes variables and tables, which all replicas have alike, and what draws numbers
# by a seed.
_ALIKE = _RANDOM | names("""
    AssignAddVariableOp AssignSubVariableOp AssignVariableOp Assert CheckNumerics CheckNumericsV2
    Empty LookupTableExportV2 LookupTableFindV2 LookupTableInsertV2 LookupTableSizeV2
    ReadVariableOp RngReadAndSkip RngSkip StatefulStandardNormalV2 StatefulTruncatedNormal
    StatefulUniform StatefulUniformFullInt StatefulUniformInt StatelessRandomGetAlg
    StatelessRandomGetKeyCounter StatelessRandomGetKeyCounterAlg VarHandleOp VarIsInitializedOp
    VariableShape
""")
# TensorFlow's families of operations that update a variable.
_UPDATES = ("ResourceApply", "ResourceGather", "ResourceScatter", "ResourceSparseApply")


def check_effects(op: Operation, called: Container[str]) -> None:
    """Raises PlanError for an operation that may do something else in each replica.

    Args:
        called: the operations that call functions, and have rules.
    """
    if op.kind in called or is_drawn(op.node.operation):
        return
    if op.kind not in _problems:
        _problems[op.kind] = _problem(op.node.operation.op_def)
    if _problems[op.kind]:
        raise PlanError(f"{op.kind} {_problems[op.kind]}")


_problems: dict[str, str] = {}  # by type of operation


def _problem(definition: Any) -> str:
    """Returns why an operation may do something else in each replica; "" if it does not."""
    if any("func" in attribute.type for attribute in definition.attr):
        return "calls functions"
    is_alike = definition.name in _ALIKE or definition.name.startswith(_UPDATES)
    if definition.is_stateful and not is_alike:
        return "may do something else in each worker"
    return ""


def is_drawn(operation: Any) -> bool:
    """Whether only the first replica may compute an operation of TensorFlow."""
    kind = operation.type
    if kind in _RANDOM:
        return not (operation.get_attr("seed") or operation.get_attr("seed2"))
    return kind in _PYTHON or kind in _OTHERS or kind in _ONCE


def drawn(op: Operation) -> Split:
    """Returns how an operation is computed that only the first replica may compute."""
    outputs = op.node.operation.outputs
    if any(output.dtype == tf.string for output in outputs):
        raise PlanError(f"{op.kind} returns strings, which the workers cannot send each other")

    def make(emission: Any, node: Any, inputs: list[Any]) -> list[Any]:
        if emission.rows.replica == 0:
            results: list[Any] = emission.create(node, inputs)
            return results
        return [
            _zeros(
                op,
                output,
                inputs,
            )
            for output in outputs
        ]

    for output in outputs:
        if op.kind not in _RANDOM and not output.shape.is_fully_defined():
            raise PlanError(f"{op.kind} returns a tensor whose shape is not known beforehand")
    return op.split(
        [SUM] * len(outputs),
        *[SAME] * len(op.values),
        make=make,
    )


def _zeros(op: Operation, output: Any, inputs: list[Any]) -> Any:
    """Returns zeros of the shape that the first replica's result has."""
    if output.shape.is_fully_defined():
        return tf.zeros(output.shape, output.dtype)
    if op.kind == "RandomShuffle":
        return tf.zeros_like(inputs[0])
    if op.kind == "Multinomial":
        return tf.zeros([tf.shape(inputs[0])[0], inputs[1]], output.dtype)
    if op.kind in ("RandomGamma", "RandomPoissonV2"):
        shape = tf.concat([inputs[0], tf.shape(inputs[1], inputs[0].dtype)], axis=0)
        return tf.zeros(shape, output.dtype)
    return tf.zeros(inputs[0], output.dtype)
