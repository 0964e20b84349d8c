"""Rules for operations that equations describe, and for sums of the replicas' addends.

A rule says how a replica computes an operation on its rows, or raises NotByPartError.

An equation has a term for each input and one for the result, as that of `tf.einsum`::

    ...,...->...     each entry is computed of the entries at its place; one entry may be for all
    nab,bc->nac      a matrix product of each row
    N*,,N*->         the gradient of a kernel: what the result lacks is added up
    #,N*->N*         the gradient of a pooling

    letter    an axis; rows may be along it, and are then computed by themselves
    ...       axes of the same kind, also fewer: from the last one on, they are alike in all terms
    _         an axis along which entries are combined, so that no rows may be along it
    *         all other axes of this kind
    #         an input that is the shape of the result
    nothing   an input, such as a kernel, that is whole
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Sequence

import numpy as np
import tensorflow as tf

from slurm_resolver.tf.partition.creation import create
from slurm_resolver.tf.partition.emission import Emission, Split
from slurm_resolver.tf.partition.operation import RESULT, Operation
from slurm_resolver.tf.partition.sizes import is_count
from slurm_resolver.tf.partition.values import (
    LOCAL,
    SAME,
    SUM,
    NotByPartError,
    Sizes,
    Tensors,
    by_kind,
    names,
)

# For the axes that "..." stands for in an equation, the last one first: no letter of an equation.
_OTHER_AXES = "0123456789"


def by_equation(op: Operation, equation: str, *, adds: bool = False) -> Split:
    """Computes an operation that an equation describes; the module's text says what it means.

    If rows are along several axes, the largest input keeps its rows.

    Args:
        adds: whether entries are added up along the axes that the result lacks.
    """
    *given, last = re.split(",|->", equation)
    terms = [_term(op, *one) for one in enumerate(given)]
    result = _term(op, RESULT, last)
    labels = [term[value.axis :][:1] for term, value in zip(terms, op.values)]
    places = [place for place in op.divided if place < len(terms) and labels[place].isalnum()]
    if not places:
        raise NotByPartError("all rows together, or in another order")
    largest = places[0]
    if places[1:]:
        largest = max(
            places,
            key=lambda place: math.prod(size[0] for size in op.shape(place) if size),
        )
    value = op.values[largest]
    label = labels[largest]
    wants = [op.beside(place, value.at(term.find(label))) for place, term in enumerate(terms)]
    axis = result.find(label)
    if any(term.count(label) > 1 for term in (*terms, result)):
        raise NotByPartError("a diagonal of the rows")
    if axis < 0:
        # What is added for an entry that all rows have would be added by each replica.
        if not adds or any(want == SAME and label in term for want, term in zip(wants, terms)):
            raise NotByPartError("all rows together, or one entry for all of them")
        return op.split(SUM, *wants)
    value = value.at(axis)
    if "#" in terms:
        if not is_count(op.size(axis, RESULT), value):
            raise NotByPartError("another size")
        place = terms.index("#")
        # Conv2DBackpropInput also takes the height and the width alone.
        if op.size(0, place)[0] == op.rank(RESULT):
            wants[place] = Sizes(value)
    return op.split(value, *wants)


def _term(op: Operation, place: int, term: str) -> str:
    """Returns a term of an equation with a character for each axis."""
    named = re.sub("[.*]", "", term)
    others = 0 if named == term else op.rank(place) - len(named)
    return term.replace("...", _OTHER_AXES[:others][::-1]).replace("*", "_" * others)


def diagonals(op: Operation, place: int, equation: str) -> Split:
    """MatrixDiagV3 and the like: each matrix by itself.

    Args:
        place: of the input that says which diagonals: one, or a first and a last one.
        equation: has D for the axes of the diagonals.
    """
    are_several = np.ptp(op.constant(place)) > 0
    return by_equation(op, equation.replace("D", "__" if are_several else "_"))


def by_entry(op: Operation) -> Split:
    """Each entry is computed of the entries at its place."""
    if op.kind == "Bitcast" and op.rank(RESULT) != op.rank():
        raise NotByPartError("a type of another size")
    return by_equation(op, ",".join(["..."] * len(op.values)) + "->...")


def combined(
    op: Operation,
    axes: Iterable[int],
    *,
    removed: bool = False,
    adds: bool = False,
) -> Split:
    """Entries are combined, or added up, along some axes, and these may be removed."""
    result = op.letters(0, axes)
    if removed:
        result = result.replace("_", "")
    return by_equation(
        op,
        f"{op.letters()}->{result}",
        adds=adds,
    )


def told_sizes(op: Operation) -> Split:
    """Shape, ShapeN and Size: sizes are those of the whole batch."""

    def make(emission: Emission, inputs: Tensors) -> Tensors:
        dtype = op.tensor(RESULT).dtype
        shapes = [tf.shape(part, dtype) for part in inputs]
        for place in op.divided:
            shapes[place] = emission.sized(
                shapes[place],
                op.raw[place],
                emission.rows.total,
            )
        return list(map(tf.reduce_prod, shapes)) if op.kind == "Size" else shapes

    if any(op.tensor(place).shape.rank is None for place in op.divided):
        raise NotByPartError("an unknown rank")
    return op.split(
        SAME,
        *op.raw,
        make=make,
    )


def reduction(op: Operation) -> Split:
    """Entries along some axes are combined: Sum, Max, ArgMax, …"""
    is_mean = op.kind == "Mean" and op.tensor(RESULT).dtype.is_floating
    found = combined(
        op,
        op.axes(1),
        removed=not op.attribute("keep_dims"),
        adds=is_mean or op.kind == "Sum",
    )
    if is_mean and SUM in found.results:
        # The mean of a replica's rows becomes an addend to that of all rows.
        return found._replace(
            make=lambda emission, inputs: list(map(emission.weighted, create(op.traced, inputs)))
        )
    return found


def matrix_product(op: Operation) -> Split:
    """MatMul, and products of batches of matrices."""
    first = "YX" if op.attribute("transpose_a") or op.attribute("adj_x") else "XY"
    second = "ZY" if op.attribute("transpose_b") or op.attribute("adj_y") else "YZ"
    return by_equation(
        op,
        f"...{first},...{second}->...XZ",
        adds=True,
    )


def sparse_product(op: Operation) -> Split:
    """SparseTensorDenseMatMul, of a matrix whose columns have rows."""
    matrix = "C_" if op.attribute("adjoint_b") else "_C"
    return by_equation(op, f",,,{matrix}->_C")


def reversed_sequences(op: Operation) -> Split:
    """ReverseSequence: a part of each row is reversed, which has a length of its own."""
    axes = op.letters(0, [op.attribute("seq_dim")])
    return by_equation(op, f"{axes},{axes[op.attribute('batch_dim')]}->{axes}")


def recurrent_layer(op: Operation) -> Split:
    """A recurrent layer of cuDNN, or its gradient, which needs what its own layer has reserved."""
    if op.kind == "CudnnRNNBackpropV3" and LOCAL not in op.raw:
        raise NotByPartError("the layer is computed whole")
    state = "_N_" if op.attribute("time_major") else "N__"
    terms = [state if tensor.shape.rank == 3 else "" for tensor in op.traced.inputs]
    terms[4] = "N"  # the lengths
    split = by_equation(op, f"{','.join(terms)}->{state}")
    # Of states, the weights' gradient, what a GRU lacks, and what is reserved.
    by_rank = {3: split.results[0], 1: SUM, 0: SAME, None: LOCAL}
    return split._replace(results=[by_rank[tensor.shape.rank] for tensor in op.traced.outputs])


# --- Sums of the replicas' addends ---------------------------------------------------------------

# These are linear in all their inputs together that are no integers.
_LINEAR = names("""
    Add AddN AddV2 Cast ConcatV2 Conj ExpandDims Identity Imag Mean Neg Pack PreventGradient Real
    Reshape ReverseV2 SelectV2 Slice Snapshot Split SplitV Squeeze StopGradient StridedSlice Sub Sum
    Transpose Unpack
""")
# These are so in one of the inputs at these places, such as a gradient of a function in that of its
# result.
_PRODUCTS: dict[str, Sequence[int]] = by_kind(
    {
        "BatchMatMulV2 BatchMatMulV3 Einsum MatMul Mul": (0, 1),
        "Div DivNoNan RealDiv": (0,),
        "InvGrad ReciprocalGrad RsqrtGrad SigmoidGrad SqrtGrad TanhGrad": (1,),
    }
)


def linear(op: Operation) -> Split | None:
    """Returns how an operation of SUMs is computed on the addends; None if it is not linear.

    A sum of integers may wrap around, which the addends do not.
    """
    sums = [place for place, value in enumerate(op.raw) if value == SUM]
    if not sums or op.divided or op.kind not in _LINEAR.union(_PRODUCTS):
        return None
    dtypes = {place: op.tensor(place).dtype for place in (*range(len(op.raw)), RESULT)}
    addends = [one for one, dtype in dtypes.items() if dtype.is_floating or dtype.is_complex]
    # What adds up to more than the largest float16 is infinite; its addends need not be.
    is_cut = op.kind == "Cast" and tf.float16 in dtypes.values()
    if is_cut or not {*sums, RESULT} <= {*addends}:
        return None
    if op.kind in _PRODUCTS:
        if sums[1:] or sums[0] not in _PRODUCTS[op.kind]:
            return None
        addends = sums
    return op.split(SUM, *[SUM if place in addends else SAME for place in range(len(op.raw))])
