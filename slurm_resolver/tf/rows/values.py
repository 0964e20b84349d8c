"""What is known of a tensor in a step of which each worker computes some rows of the batch.

========= =================================================  ======================================
kind      what it is                                         examples
========= =================================================  ======================================
SAME      the same in all workers                            a constant, a variable
NUMBERS   sizes, and what is computed of them                `tf.shape(x)`, its first entry
ROWS      by row along an axis: an entry for a row depends   an input, a prediction, a loss for
          on that row alone                                  each row
SUM       a sum over the rows                                the sum of the losses
COMPONENT a part of a sparse or ragged tensor by row         `sparse.values`
LIST      a TensorList, whose elements are of one kind       the outputs of a recurrent layer
UNKNOWN   what no rule derives, or what compares rows        the largest prediction of the batch
========= =================================================  ======================================

ROWS and SUM have a power of the number of rows, by which the tensor has been multiplied: a mean
over rows is a sum with power -1. So a mean may be computed in any order.

The analysis follows sizes, and the order of rows, in a few batches of different sizes, `BATCHES`:
what is true of all of them is no coincidence of sizes.
"""

from __future__ import annotations

import enum
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple, Union

import numpy as np


class Batch(NamedTuple):
    """A batch that stands for all others: the number of its rows, and all other unknown sizes."""

    rows: int
    others: int


# The last one is larger than any constant in a program.
BATCHES = (Batch(3, 5), Batch(4, 5), Batch(4, 7), Batch(1_000_003, 5))
# The row of each entry along an axis is followed in these two, which differ in both sizes.
FOLLOWED = (BATCHES[0], BATCHES[2])

# For each of `FOLLOWED`, the row of each entry along an axis, from 1: bytes of int32.
RowsAlongAxis = tuple[bytes, ...]


class Kind(enum.Enum):
    """What a tensor is; the module's table has the meanings."""

    SAME = 1
    NUMBERS = 2
    ROWS = 3
    SUM = 4
    COMPONENT = 5
    LIST = 6
    UNKNOWN = 7


class Value(NamedTuple):
    """What is known of a tensor.

    Attributes:
        kind: see the table of this module.
        power: of the number of rows, by which ROWS and SUM have been multiplied.
        axis: of ROWS: where the rows are, at least 0.
        layout: of ROWS: which row each entry along the axis belongs to.
        entries: of NUMBERS: for each of `BATCHES` the numbers. Of LIST: what is known of an
            element. A list without elements is SAME.
        reason: of UNKNOWN: why.
    """

    kind: Kind
    power: int = 0
    axis: int = 0
    layout: RowsAlongAxis = ()
    entries: tuple[Any, ...] = ()
    reason: Reason | None = None

    @property
    def is_plain(self) -> bool:
        """Whether the tensor is the same in all workers, however many rows they have."""
        return self == SAME or (self.kind is Kind.NUMBERS and self.degree == 0)

    @property
    def is_mean(self) -> bool:
        """Whether the tensor is a mean over the rows."""
        return self == MEAN

    @property
    def is_sum(self) -> bool:
        """Whether the tensor is a sum over the rows, such as their number."""
        return self == SUM or (self.kind is Kind.NUMBERS and self.degree == 1)

    @property
    def is_by_row(self) -> bool:
        """Whether each entry depends on one row, and not on their number."""
        return self.kind is Kind.ROWS and not self.power

    @property
    def degree(self) -> int | None:
        """The power of the number of rows to which the tensor is proportional; None if to none."""
        if self.kind is not Kind.NUMBERS:
            return self.power
        for power in (0, 1, -1):
            few, more, _, many = (
                np.asarray(numbers) / float(batch.rows) ** power
                for batch, numbers in zip(BATCHES, self.entries)
            )
            if np.allclose(few, more) and np.allclose(few, many):
                return power
        return None

    def shifted(self, places: int) -> Value:
        """Returns the value whose rows are that many axes later."""
        return self._replace(axis=self.axis + places)


Values = Sequence[Value]  # what is known of an operation's inputs
Found = Union[Value, list[Value]]  # of all its results together, or of each


class Reason(NamedTuple):
    """Why nothing is known of a tensor.

    Attributes:
        text: such as "a part of the rows".
        refuted: whether the rows are compared; otherwise, there is no rule.
        operation: of TensorFlow, whose result this is.
    """

    text: str
    refuted: bool
    operation: Any = None


class UnprovenError(Exception):
    """Raised by a rule that does not know its result."""


class RefutedError(UnprovenError):
    """Raised by a rule that knows that rows are compared."""


SAME = Value(Kind.SAME)
SUM = Value(Kind.SUM)
MEAN = Value(Kind.SUM, power=-1)
COMPONENT = Value(Kind.COMPONENT)


def numbers(of_batches: Iterable[Any]) -> Value:
    """Returns the value of a tensor of numbers, given its numbers for each of `BATCHES`."""
    return Value(Kind.NUMBERS, entries=tuple(tuple(np.ravel(one).tolist()) for one in of_batches))


def rows(axis: int = 0, layout: RowsAlongAxis = (), power: int = 0) -> Value:
    """Returns the value of a tensor by row along an axis, by default with one entry for each."""
    return Value(Kind.ROWS, power, axis, layout or repeated(1))


COUNT = numbers(batch.rows for batch in BATCHES)


def repeated(count: int) -> RowsAlongAxis:
    """Returns the layout with a number of entries for each row, one row after another."""
    return tuple(
        np.repeat(np.arange(1, batch.rows + 1, dtype=np.int32), count).tobytes()
        for batch in FOLLOWED
    )


def list_of(element: Value) -> Value:
    """Returns the value of a TensorList with equal elements."""
    return Value(Kind.LIST, entries=(element,))
