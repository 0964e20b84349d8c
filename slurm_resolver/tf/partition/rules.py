"""Rules for operations that compute: entry by entry, along axes, products, and windows.

A rule says how a replica computes an operation on its rows, or raises NotByPartError.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from slurm_resolver.tf.partition.operation import Operation, size_at
from slurm_resolver.tf.partition.values import (
    SAME,
    SUM,
    NotByPartError,
    Split,
    Value,
    Want,
    names,
    rows,
)

# For the axes that "..." stands for in an equation, the last one first: no letter of an equation.
_OTHER_AXES = "0123456789"


def by_entry(op: Operation) -> Split:
    """Each entry is computed of the entries at its place.

    Of inputs whose rows are along different axes, such as [N, 1] and [1, N], the largest keeps its
    rows.
    """
    ranks = [op.rank(place) for place in range(len(op.values))]
    if op.kind == "Bitcast" and op.result_rank() != ranks[0]:
        raise NotByPartError("a type of another size")
    if op.kind == "Select" and ranks[0] < ranks[1]:
        raise NotByPartError("tf.compat.v1.where by row")
    kept = op.values[max(op.divided, key=op.entries)]
    from_end = kept.axis - ranks[max(op.divided, key=op.entries)]
    wants: list[Want] = []
    for place, rank in enumerate(ranks):
        wanted = kept.at(rank + from_end)
        is_added = op.kind == "AddN"  # which does not broadcast
        wants.append(wanted if is_added else op.beside(place, wanted))
    return op.split(kept.at(max(ranks) + from_end), *wants)


def by_entry_of(op: Operation, place: int) -> Split:
    """Each entry is computed of the entry of one input; the others are tables and defaults."""
    return op.along(op.of_rows(place), place)


def shape_alone(op: Operation) -> Split:
    """ZerosLike and OnesLike, which read the shape of a sum alone."""
    if op.values[0].has_rows:
        return op.along(op.values[0])
    return op.split(SAME, op.raw[0])


def told_sizes(op: Operation) -> Split:
    """Shape, ShapeN and Size: sizes are those of the whole batch."""

    def make(emission: Any, node: Any, inputs: list[Any]) -> list[Any]:
        results = []
        for part, value, output in zip(
            inputs,
            op.raw,
            node.operation.outputs,
        ):
            sizes = emission.whole_shape(
                part,
                value,
                output.dtype,
            )
            results.append(tf.reduce_prod(sizes) if op.kind == "Size" else sizes)
        return results

    return Split(
        (SAME,) * len(op.node.outputs),
        op.raw,
        make,
    )


def rank_of(op: Operation) -> Split:
    """Rank, which a part has as well."""
    return op.split(SAME, op.raw[0])


# --- Sums ----------------------------------------------------------------------------------------


def reduction(op: Operation) -> Split:
    """Entries along some axes are combined: Sum, Max, ArgMax, …"""
    value = op.of_rows()
    rank = op.rank()
    axes = op.axes(1, rank)
    if value.axis not in axes:
        before = 0 if op.attribute("keep_dims") else sum(axis < value.axis for axis in axes)
        return op.along(value.at(value.axis - before))
    if op.kind == "Sum":
        return op.along(SUM)
    if op.kind == "Mean" and op.node.operation.outputs[0].dtype.is_floating:
        return op.along(SUM, make=mean_of(value, axes))
    raise NotByPartError("all rows together")


def mean_of(value: Value, axes: Sequence[int]) -> Any:
    """Returns what writes a part of a mean: a sum, divided by the count for the whole batch."""

    def make(emission: Any, node: Any, inputs: list[Any]) -> list[Any]:
        part = inputs[0]
        wide = tf.cast(part, tf.float32) if part.dtype.size < 4 else part
        sizes = emission.whole_shape(
            part,
            value,
            tf.int32,
        )
        count = tf.reduce_prod(tf.gather(sizes, axes))
        keeps = node.operation.get_attr("keep_dims")
        total = tf.reduce_sum(
            wide,
            axes,
            keepdims=keeps,
        ) / tf.cast(count, wide.dtype)
        return [tf.cast(total, part.dtype)]

    return make


def sum_of_all(op: Operation) -> Split:
    """L2Loss: a sum over all entries."""
    return op.along(SUM)


def bias_gradient(op: Operation) -> Split:
    """BiasAddGrad: a sum over all axes but that of the channels."""
    value = op.of_rows()
    channels = 1 if op.attribute("data_format") == b"NCHW" else op.rank() - 1
    if value.axis == channels:
        raise NotByPartError("rows as channels")
    return op.along(SUM)


# --- Products ------------------------------------------------------------------------------------


def matrix_product(op: Operation) -> Split:
    """MatMul, and products of batches of matrices."""
    transposed = op.attribute("transpose_a") or op.attribute("adj_x")
    other = op.attribute("transpose_b") or op.attribute("adj_y")
    first = "YX" if transposed else "XY"
    second = "ZY" if other else "YZ"
    return product(op, f"...{first},...{second}->...XZ")


def einsum(op: Operation) -> Split:
    """Einsum."""
    return product(op, op.attribute("equation").decode())


def product(op: Operation, equation: str) -> Split:
    """A product that is summed over the axes which the result has not.

    If the rows are along several axes, the largest input keeps its rows.
    """
    tensors = (*op.node.operation.inputs, *op.node.operation.outputs)
    terms = []
    for term, tensor in zip(re.split(",|->", equation), tensors):
        if tensor.shape.rank is None:
            raise NotByPartError("an unknown rank")
        axes = tensor.shape.rank - len(term) + 3
        terms.append(term.replace("...", _OTHER_AXES[:axes][::-1]))
    largest = max(op.divided, key=op.entries)
    value = op.values[largest]
    label = terms[largest][value.axis]
    if any(term.count(label) > 1 for term in terms):
        raise NotByPartError("a diagonal of the rows")
    wants = [op.beside(place, value.at(term.find(label))) for place, term in enumerate(terms[:-1])]
    axis = terms[-1].find(label)
    if axis < 0 and SAME in wants and any(label in term for term in terms[:-1][wants.index(SAME)]):
        raise NotByPartError("one entry for all rows")
    return op.split(SUM if axis < 0 else value.at(axis), *wants)


# --- Windows -------------------------------------------------------------------------------------


def counted(op: Operation) -> Split:
    """DenseBincount: how often each number occurs, or the weights of where it does."""
    value = op.of_rows() if op.divided == [0] else op.values[op.divided[0]]
    if op.rank() == 2 and value == rows() and op.divided == [0]:
        return op.along(value)
    if op.rank() != 1 or value != rows() or op.attribute("binary_output"):
        raise NotByPartError("rows elsewhere")
    return op.split(
        SUM,
        value,
        SAME,
        SAME if op.node.operation.inputs[2].shape == [0] else op.beside(2, value),
    )


def sparse_product(op: Operation) -> Split:
    """SparseTensorDenseMatMul, of a matrix whose columns have rows."""
    value = op.of_rows(3)
    if value.axis == op.attribute("adjoint_b"):
        raise NotByPartError("a sum over rows")
    return op.along(value.at(1), 3)


def windows(op: Operation, data: Sequence[int], sized: int | None = None) -> Split:
    """Entries are combined along all axes but the first, which is that of the rows.

    Args:
        data: the places of the inputs with rows.
        sized: the place of the input that is the shape of the result.
    """
    value = op.values[op.divided[0]]
    if value.axis or not set(op.divided) <= set(data):
        raise NotByPartError("rows elsewhere")
    if op.kind.startswith("FusedBatchNorm") and op.attribute("is_training"):
        raise NotByPartError("statistics of the batch")
    wants: list[Want] = [SAME] * len(op.values)
    for place in data:
        wants[place] = op.beside(place, value)
    if sized is not None:
        wants[sized] = size_at(value)
    if "BackpropFilter" in op.kind:
        return op.split(SUM, *wants)
    statistics = [SAME] * (len(op.node.outputs) - 1)
    is_normalization = op.kind.startswith("FusedBatchNorm")
    return op.split([value, *statistics] if is_normalization else value, *wants)


def bias(op: Operation) -> Split:
    """BiasAdd, along the axis of the channels."""
    value = op.of_rows()
    channels = 1 if op.attribute("data_format") == b"NCHW" else op.rank() - 1
    if value.axis == channels:
        raise NotByPartError("rows as channels")
    return op.along(value)


def along_last(op: Operation, count: int = 1) -> Split:
    """Entries are combined along the last axes.

    Args:
        count: how many axes these are.
    """
    value = op.of_rows()
    rank = op.result_rank() - 1 if op.kind == "MatrixDiagV3" else op.rank()
    if value.axis >= rank - count:
        raise NotByPartError("all rows together")
    return op.along(value)


def along_given(op: Operation, place: int = 1) -> Split:
    """Entries are combined along the axes that an input names: Cumsum, ReverseV2, Roll."""
    value = op.of_rows()
    if value.axis in op.axes(place, op.rank()):
        raise NotByPartError("all rows together, or in another order")
    return op.along(value)


def one_hot(op: Operation) -> Split:
    """OneHot, which adds an axis."""
    value = op.of_rows()
    axis = op.attribute("axis")
    return op.along(value.at(value.axis + (0 <= axis <= value.axis)))


# --- Sums of the replicas' addends ---------------------------------------------------------------

_LINEAR = names("""
    Cast Conj ExpandDims Identity Imag Mean Neg PreventGradient Real Reshape ReverseV2 Slice
    Snapshot Split SplitV Squeeze StopGradient StridedSlice Sum Transpose Unpack
    """)
_ADDING = frozenset(("Add", "AddN", "AddV2", "Pack", "Sub"))
_PRODUCTS = frozenset(("BatchMatMulV2", "BatchMatMulV3", "Einsum", "MatMul", "Mul"))
# The gradients of some functions are linear in the gradient of their result.
_GRADIENTS = names("InvGrad ReciprocalGrad RsqrtGrad SigmoidGrad SqrtGrad TanhGrad")
_QUOTIENTS = frozenset(("Div", "DivNoNan", "RealDiv"))


def linear(op: Operation) -> Split | None:
    """Returns how an operation of SUMs is computed on the addends; None if it is not linear."""
    sums = [place for place, value in enumerate(op.raw) if value == SUM]
    outputs = op.node.operation.outputs
    if op.divided or any(value.is_list for value in op.raw) or not outputs:
        return None
    if not (outputs[0].dtype.is_floating or outputs[0].dtype.is_complex):
        return None
    count = len(op.raw)
    wants: list[Want] = [SUM if place in sums else SAME for place in range(count)]
    first = 1 if op.kind == "Split" else 0
    if op.kind in _LINEAR and sums == [first]:
        return op.split(SUM, *wants)
    if op.kind in _ADDING:
        return op.split(SUM, *[SUM] * count)
    if op.kind == "ConcatV2" and count - 1 not in sums:
        return op.split(SUM, *[SUM] * (count - 1))
    if op.kind == "SelectV2" and 0 not in sums:
        return op.split(
            SUM,
            SAME,
            SUM,
            SUM,
        )
    is_product = op.kind in _PRODUCTS and len(sums) == 1
    is_quotient = op.kind in _QUOTIENTS and sums == [0]
    is_gradient = op.kind in _GRADIENTS and sums == [1]
    if (is_product or is_quotient or is_gradient) and not _enlarges(op, sums[0]):
        return op.split(SUM, *wants)
    return None


def _enlarges(op: Operation, place: int) -> bool:
    """Whether a result is larger than an input, which is therefore put together first."""
    given = op.node.operation.inputs[place].shape.num_elements()
    result = op.node.operation.outputs[0].shape.num_elements()
    return given is None or result is None or result > given
