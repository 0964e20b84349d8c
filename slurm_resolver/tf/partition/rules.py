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

import functools
import re
from collections.abc import Iterable, Sequence

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
    Value,
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
    *terms, result = _terms(op, equation)
    value, label = _rows_and_label(op, terms)
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


def _terms(op: Operation, equation: str) -> list[str]:
    """Returns the terms of an equation, with a character for each axis."""
    *terms, result = re.split(",|->", equation)
    return [_term(op, *one) for one in (*enumerate(terms), (RESULT, result))]


def _term(op: Operation, place: int, term: str) -> str:
    named = re.sub(
        r"[.*]",
        "",
        term,
    )
    if named == term:
        return term
    others = op.rank(place) - len(named)
    return term.replace("...", _OTHER_AXES[:others][::-1]).replace("*", "_" * others)


def _rows_and_label(op: Operation, terms: Sequence[str]) -> tuple[Value, str]:
    """Returns the rows of the largest input that can keep them, and the letter of their axis."""
    labels = [term[value.axis :][:1] for term, value in zip(terms, op.values)]
    places = [place for place in op.divided if place < len(terms) and labels[place].isalnum()]
    if not places:
        raise NotByPartError("all rows together, or in another order")
    largest = max(places, key=op.entries)
    return op.values[largest], labels[largest]


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
    return op.split(
        SAME,
        *op.raw,
        make=functools.partial(_write_sizes, op),
    )


def _write_sizes(op: Operation, emission: Emission, inputs: Tensors) -> Tensors:
    shapes = []
    for part, value in zip(inputs, op.raw):
        shape = tf.shape(part, op.tensor(RESULT).dtype)
        if value.has_rows:
            shape = emission.sized(
                shape,
                value,
                emission.rows.total,
            )
        shapes.append(shape)
    return list(map(tf.reduce_prod, shapes)) if op.kind == "Size" else shapes


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

_PRODUCTS = names("BatchMatMulV2 BatchMatMulV3 Einsum MatMul Mul")
# The gradients of some functions are linear in the gradient of their result.
_GRADIENTS = "InvGrad ReciprocalGrad RsqrtGrad SigmoidGrad SqrtGrad TanhGrad"
_QUOTIENTS = "Div DivNoNan RealDiv"
_MAY_ENLARGE = _PRODUCTS | names(f"{_GRADIENTS} {_QUOTIENTS}")
# In which inputs operations are linear together; products are in one of them.
_LINEAR = {
    "Add AddN AddV2 Pack Sub": slice(None),
    "ConcatV2": slice(-1),
    "SelectV2": slice(1, 3),
    f"Split {_GRADIENTS}": slice(1, 2),
    f"""
    Cast Conj ExpandDims Identity Imag Mean Neg PreventGradient Real Reshape ReverseV2 Slice
    Snapshot SplitV Squeeze StopGradient StridedSlice Sum Transpose Unpack {_QUOTIENTS}
    """: slice(1),
}
_ADDENDS = {kind: places for kinds, places in _LINEAR.items() for kind in kinds.split()}


def linear(op: Operation) -> Split | None:
    """Returns how an operation of SUMs is computed on the addends; None if it is not linear.

    A sum of integers may wrap around, which the addends do not.
    """
    places = range(len(op.raw))
    sums = [place for place in places if op.raw[place] == SUM]
    addends = sums[:1] if op.kind in _PRODUCTS else places[_ADDENDS.get(op.kind, slice(0))]
    if not sums or op.divided or not set(sums) <= set(addends):
        return None
    dtypes = [op.tensor(place).dtype for place in (*sums, RESULT)]
    if not all(dtype.is_floating or dtype.is_complex for dtype in dtypes):
        return None
    if op.kind in _MAY_ENLARGE and _may_enlarge(op, sums[0]):
        return None  # what is smaller is put together
    return op.split(SUM, *[SUM if place in addends else SAME for place in places])


def _may_enlarge(op: Operation, place: int) -> bool:
    """Whether the result may have more entries than an input."""
    given, result = (op.tensor(one).shape.num_elements() for one in (place, RESULT))
    return None in (given, result) or result > given
