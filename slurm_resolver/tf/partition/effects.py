"""Operations with effects, and those whose results only the first replica has.

What an unseeded random operation or a Python function returns is not the same in all replicas. The
first replica computes it, and the others have zeros in its place: so it is a SUM. Which stateful
operations do the same in all replicas is listed here; others stop the plan.
"""

from __future__ import annotations

import tensorflow as tf

from slurm_resolver.tf.partition.creation import create
from slurm_resolver.tf.partition.emission import Emission, Split
from slurm_resolver.tf.partition.operation import Operation
from slurm_resolver.tf.partition.values import SUM, PlanError, Tensors, names

RANDOM = names("""
    AllCandidateSampler FixedUnigramCandidateSampler LearnedUnigramCandidateSampler
    LogUniformCandidateSampler Multinomial ParameterizedTruncatedNormal RandomGamma RandomPoissonV2
    RandomShuffle RandomStandardNormal RandomUniform RandomUniformInt
    ThreadUnsafeUnigramCandidateSampler TruncatedNormal UniformCandidateSampler
    """)
# Others that draw.
_OTHERS = names("NonDeterministicInts Timestamp")
# What has an effect outside of the step, or draws the shape of its result, happens once.
_ONCE = names("""
    EagerPyFunc FractionalAvgPool FractionalMaxPool PrintV2 PyFunc PyFuncStateless WriteAudioSummary
    WriteHistogramSummary WriteImageSummary WriteScalarSummary WriteSummary
    """)

# What reads and changes variables and tables, which all replicas have alike, and what draws numbers
# by a seed.
_ALIKE = RANDOM | names("""
    AssignAddVariableOp AssignSubVariableOp AssignVariableOp Assert CheckNumerics CheckNumericsV2
    Empty LookupTableExportV2 LookupTableFindV2 LookupTableInsertV2 LookupTableSizeV2
    ReadVariableOp RngReadAndSkip RngSkip StatefulStandardNormalV2 StatefulTruncatedNormal
    StatefulUniform StatefulUniformFullInt StatefulUniformInt StatelessRandomGetAlg
    StatelessRandomGetKeyCounter StatelessRandomGetKeyCounterAlg VarHandleOp VarIsInitializedOp
    VariableShape
""")
# TensorFlow's families of operations that update a variable.
_UPDATES = ("ResourceApply", "ResourceGather", "ResourceScatter", "ResourceSparseApply")


def changes_more_than_variables(operation: tf.Operation) -> bool:
    """Whether an operation of TensorFlow changes what cannot be set to what it was before."""
    return operation.type == "LookupTableInsertV2" or (
        has_unknown_effect(operation) and not calls(operation)
    )


def has_unknown_effect(operation: tf.Operation) -> bool:
    """Whether an operation of TensorFlow may do something else in each replica."""
    kind = operation.type
    if kind in ("CudnnRNNBackpropV3", "CudnnRNNV3"):
        return bool(operation.get_attr("dropout"))  # which draws
    is_alike = kind in _ALIKE or kind.startswith(_UPDATES)
    return operation.op_def.is_stateful and not is_alike


def calls(operation: tf.Operation) -> bool:
    """Whether an operation of TensorFlow calls functions."""
    return any("func" in attribute.type for attribute in operation.op_def.attr)


def is_drawn(operation: tf.Operation) -> bool:
    """Whether only the first replica may compute an operation of TensorFlow."""
    kind = operation.type
    if kind in RANDOM:
        return not (operation.get_attr("seed") or operation.get_attr("seed2"))
    return kind in _OTHERS | _ONCE


def drawn(op: Operation) -> Split:
    """Returns how an operation is computed that only the first replica may compute."""
    is_harmless = op.kind in RANDOM | _OTHERS  # and tells other replicas the shape of its result
    for output in op.traced.outputs:
        if not is_harmless and (output.dtype == tf.string or not output.shape.is_fully_defined()):
            raise PlanError(
                f"{op.kind} returns strings, or a tensor whose shape is not known beforehand: the "
                "workers cannot send it to each other"
            )

    def make(emission: Emission, inputs: Tensors) -> Tensors:
        if emission.rows.replica == 0:
            return create(op.traced, inputs)
        if is_harmless:
            return list(map(tf.zeros_like, create(op.traced, inputs)))
        return [tf.zeros(output.shape, output.dtype) for output in op.traced.outputs]

    return op.split(SUM, make=make)
