"""What is known of a tensor of which each replica may have a part.

====== ================================================= =======================================
kind   what a replica has                                examples
====== ================================================= =======================================
SAME   the tensor of one process, the same in all        a variable, a constant, `tf.shape(x)`
       replicas, bit for bit
ROWS   its own rows along an axis                        an input, a prediction
SUM    an addend: the sum over all replicas is the       a gradient, the sum or mean of a loss
       tensor of one process
LIST   a TensorList, whose elements are of a kind        the outputs of a loop over time
LOCAL  a statistic of its own rows, which differs by     the mean of BatchNormalization with
       definition; all of them together are their mean   `synchronized=False`
WORDS  what its own texts are split into                 `tf.strings.split(x)`
====== ================================================= =======================================

N is the number of rows of the whole batch, and all sizes that a step computes are those of the
whole batch. An axis with rows has outer · N · inner places: two batches one after another have
outer = 2, and rows of 5 numbers that are reshaped into one axis have inner = 5.
"""

from __future__ import annotations

import enum
from collections.abc import Sequence
from typing import Any, NamedTuple, Optional, TypeVar, Union

import numpy.typing as npt
import tensorflow as tf

# The numbers of rows N for which the sizes in a graph are inferred; see `sizes`. With larger ones,
# the number of all pixels in a batch would exceed an int32.
COUNTS = (840, 1_260)

T = TypeVar("T")
Pair = tuple[T, T]  # for each of these N
Shape = Sequence[Optional[Pair[int]]]  # the size of each axis, or None if it is unknown
Numbers = npt.NDArray[Any]  # of a tensor, of its type
Samples = Pair[Numbers]
Tensors = Sequence[tf.Tensor]
TensorNumbers = Sequence[int]  # of tensors in a graph; see `inlining.Flat`


# What a replica has of a tensor; the module's table has the meanings.
Kind = enum.Enum("Kind", "SAME ROWS SUM LIST LOCAL WORDS")


class Value(NamedTuple):
    """What is known of a tensor.

    Attributes:
        kind: see the table of this module.
        axis: of ROWS: where the rows are, at least 0.
        outer: of ROWS, and of the texts of WORDS: how many blocks of N · inner places there are.
        inner: of the same: how many places each row has in a block.
        element: of LIST: what its elements are; None if it never had one, or has one of each row.
        numbers: of LIST: those of each element for two sizes of a batch, if all are the same vector
            of sizes.
        source: of WORDS: where the texts are split.
        role: of WORDS: see `texts`; of a LIST with an element of each row: see `row_loops`.
    """

    kind: Kind
    axis: int = 0
    outer: int = 1
    inner: int = 1
    element: Value | None = None
    numbers: tuple[tuple[int, ...], ...] | None = None
    source: object = None
    role: str = ""

    @property
    def has_rows(self) -> bool:
        """Whether a replica has its own rows."""
        return self.kind is Kind.ROWS

    @property
    def is_list(self) -> bool:
        """Whether it is a TensorList."""
        return self.kind is Kind.LIST

    def at(self, axis: int) -> Value:
        """Returns the same rows along another axis."""
        return self._replace(axis=axis)


Values = Sequence[Value]  # one for each tensor

SAME = Value(Kind.SAME)
SUM = Value(Kind.SUM)
LOCAL = Value(Kind.LOCAL)
OWNS = Value(Kind.LIST, role="owns")


def rows(axis: int = 0, outer: int = 1, inner: int = 1) -> Value:
    """Returns the value of a tensor with rows along an axis."""
    return Value(
        Kind.ROWS,
        axis,
        outer,
        inner,
    )


def list_of(element: Value | None) -> Value:
    """Returns the value of a TensorList."""
    return Value(Kind.LIST, element=element)


class Sizes(NamedTuple):
    """An input that is a vector of sizes, one of which is this replica's: outer · n · inner.

    Attributes:
        rows: whose axis is the place of that size in the vector.
    """

    rows: Value


class Literal(NamedTuple):
    """An input that is replaced by a constant, such as the shape of a list's elements."""

    numbers: Any
    dtype: tf.DType


# What an operation gets as an input. A value says that the input is converted into one of that
# value: SAME rows are sliced, and a SAME addend counts in the first replica. All else is put
# together first.
Want = Union[Value, Sizes, Literal]
Wants = Sequence[Want]


class NotByPartError(Exception):
    """Raised by a rule whose operation has to be computed whole; the text says why."""


class PlanError(Exception):
    """Raised if a step can be neither divided nor computed whole in the replicas."""


def names(text: str) -> frozenset[str]:
    """Returns the words of a text, such as types of operations."""
    return frozenset(text.split())


def by_kind(table: dict[str, T]) -> dict[str, T]:
    """Returns a table by types of operations, given one whose keys are several of them."""
    return {kind: one for kinds, one in table.items() for kind in kinds.split()}
