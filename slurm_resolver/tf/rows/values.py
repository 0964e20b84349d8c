"""What is known of a tensor in a step of which each worker computes some rows of the batch.

========= ================================================= ======================================
kind      what it is                                        examples
========= ================================================= ======================================
SAME      the same in all workers                           a constant, a variable
NUMBERS   sizes, and what is computed of them               `tf.shape(x)`, its first entry
ROWS      by row along an axis: an entry for a row depends  an input, a prediction, a loss for
          on that row alone                                 each row
SUM       a sum over the rows                               the sum of the losses
COMPONENT a part of a sparse or ragged tensor               `sparse.values`
UNKNOWN   what no rule derives, or what compares rows       the largest prediction of the batch
========= ================================================= ======================================

A SUM has a degree, which is a power of the number of rows: a sum over the rows has 1, a mean has 0.
A TensorList is known as the tensor of its stacked elements.

The analysis follows sizes in three batches, `BATCHES`, and the order of rows in the first one: what
is true of all is no coincidence of sizes.
"""

from __future__ import annotations

import enum
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple, Union

import numpy as np

# The numbers of rows of three batches that stand for all others. The second one is larger than any
# constant in a program, by a prime: what is computed of the number of rows, such as whether it is
# odd, is not the same in all by chance. The last one is the smallest part of a batch.
FEW = 3
MANY = FEW + 10_007
BATCHES = (FEW, MANY, 1)
OTHER_SIZE = 107  # any other unknown size, such as a number of tokens; no usual number of classes


class Kind(enum.Enum):
    """What a tensor is; the module's table has the meanings."""

    SAME = 1
    NUMBERS = 2
    ROWS = 3
    SUM = 4
    COMPONENT = 5
    UNKNOWN = 6


class Value(NamedTuple):
    """What is known of a tensor.

    Attributes:
        kind: see the table of this module.
        power: of a SUM: the power of the number of rows to which it is proportional.
        axis: of ROWS: where the rows are, at least 0. Otherwise, it means nothing.
        layout: of ROWS: the row of each entry along the axis, from 1, in a batch of `FEW` rows.
        numbers: of NUMBERS: for each of `BATCHES`, as lists.
        variable: of SAME: the id of the handle, for a variable's handle or value.
        reason: of UNKNOWN: why.
    """

    kind: Kind
    power: int = 0
    axis: int = 0
    layout: tuple[int, ...] = ()
    numbers: tuple[Any, ...] = ()
    variable: int | None = None
    reason: Reason | None = None

    @property
    def degree(self) -> int | None:
        """The power of the number of rows to which the tensor is proportional; None if to none."""
        if self.kind is not Kind.NUMBERS:
            return self.power if self.kind in (Kind.SAME, Kind.SUM) else None
        few = np.asarray(self.numbers[0])
        for power in (0, 1, -1):
            expected = [few * (batch / FEW) ** power for batch in BATCHES]
            if np.allclose(expected, self.numbers, atol=0):
                return power
        return None

    @property
    def is_plain(self) -> bool:
        """Whether the tensor is the same in all workers, however many rows they have."""
        return self.kind is not Kind.SUM and self.degree == 0

    @property
    def is_mean(self) -> bool:
        """Whether the tensor is a mean over the rows."""
        return self.kind is Kind.SUM and not self.power

    @property
    def is_sum(self) -> bool:
        """Whether the tensor is a sum over the rows, such as their number."""
        return self.degree == 1

    @property
    def is_refuted(self) -> bool:
        """Whether rows are compared."""
        return self.reason is not None and self.reason.refuted

    def shifted(self, places: int) -> Value:
        """Returns the value whose rows, if it has some, are that many axes later."""
        return self._replace(axis=self.axis + places)


Values = Sequence[Value]  # what is known of an operation's inputs
Found = Union[Value, Values]  # of all its results together, or of each


class Reason(NamedTuple):
    """Why nothing is known of a tensor.

    Attributes:
        text: such as "a part of the rows".
        refuted: whether the rows are compared; otherwise, there is no rule.
        operation: of TensorFlow, whose result this is.
    """

    text: str
    refuted: bool
    operation: Any


class UnprovenError(ValueError):
    """Raised by a rule that does not know its result."""


class RefutedError(UnprovenError):
    """Raised by a rule that knows that rows are compared."""


SAME = Value(Kind.SAME)
COMPONENT = Value(Kind.COMPONENT)
SUM = Value(Kind.SUM, power=1)
MEAN = Value(Kind.SUM)


def unknown(operation: Any, error: Exception) -> Value:
    """Returns the value of what an operation computes, given why no rule derives it."""
    text = str(error) if isinstance(error, UnprovenError) else "no rule for its inputs"
    return Value(Kind.UNKNOWN, reason=Reason(text, isinstance(error, RefutedError), operation))


def first_unknown(values: Iterable[Value]) -> Value | None:
    """Returns the first value that is UNKNOWN, or the first refuted one; None if all are known."""
    found = [value for value in values if value.reason]
    return max(found, key=lambda value: value.is_refuted, default=None)


def numbers(of_batches: Iterable[Any]) -> Value:
    """Returns the value of a tensor of numbers, given its numbers for each of `BATCHES`."""
    return Value(Kind.NUMBERS, numbers=tuple(np.asarray(one).tolist() for one in of_batches))


def rows(axis: int = 0, count: int = 1) -> Value:
    """Returns the value of a tensor with that many entries for each row, one row after another."""
    layout = np.repeat(np.arange(1, FEW + 1), count).tolist()
    return Value(Kind.ROWS, axis=axis, layout=tuple(layout))


COUNT = numbers(BATCHES)
