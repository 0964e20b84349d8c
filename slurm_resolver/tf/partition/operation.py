"""An operation as a rule of the table sees it.

A SUM is seen as SAME: what it is put together to. `raw` has the SUM; only what is linear uses it.
A LOCAL statistic is seen as SAME as well, since no axis of it has rows.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Callable

import numpy as np
import tensorflow as tf

from slurm_resolver.tf.partition.emission import Make, Split
from slurm_resolver.tf.partition.inlining import Flat, Node
from slurm_resolver.tf.partition.sizes import SizesOf, is_count
from slurm_resolver.tf.partition.values import (
    SAME,
    Kind,
    NotByPartError,
    Numbers,
    Pair,
    Samples,
    Shape,
    T,
    Value,
    Values,
    Want,
)

RESULT = -1  # the place of the last result, beside those of the inputs
_LETTERS = "abcdefghijklmnop"


class Operation:
    """An operation, and what is known of its inputs.

    Attributes:
        node: its place in the graph.
        traced: the operation of TensorFlow.
        kind: its type, such as "MatMul".
        raw: what is known of its inputs.
        values: the same, with SAME for each SUM and LOCAL.
        sizes: of the graph.
    """

    def __init__(
        self,
        node: Node,
        raw: Values,
        sizes: SizesOf,
    ) -> None:
        self.node = node
        self.traced = node.operation
        self.kind = node.kind
        self.raw = raw
        self.values = [SAME if one.kind in (Kind.SUM, Kind.LOCAL) else one for one in raw]
        self.sizes = sizes
        self._numbers = (*node.inputs, *node.outputs)

    def attribute(self, name: str) -> Any:
        """Returns an attribute of the operation; None if it has none."""
        try:
            return self.traced.get_attr(name)
        except ValueError:
            return None

    def function(self, attribute: str) -> Flat:
        """Returns the function that an attribute names, such as the body of a loop."""
        return self.node.function(self.attribute(attribute))

    def tensor(self, place: int = 0) -> tf.Tensor:
        """Returns an input as it was traced, or the last result."""
        return self.sizes.flat.tensors[self._numbers[place]]

    def rank(self, place: int = 0) -> int:
        """Returns the number of axes."""
        rank = self.tensor(place).shape.rank
        if rank is None:
            raise NotByPartError("an unknown rank")
        return int(rank)

    def shape(self, place: int = 0) -> Shape:
        """Returns the size of each axis for two sizes of the batch."""
        return self._known(self.sizes.shape(self._numbers[place]))

    def size(self, axis: int, place: int = 0) -> Pair[int]:
        """Returns the size along an axis for two sizes of the batch."""
        return self._known(self.sizes.size(self._numbers[place], axis))

    def numbers(self, place: int) -> Samples:
        """Returns an input's numbers for two sizes of the batch."""
        return self._known(self.sizes.numbers(self._numbers[place]))

    def constant(self, place: int) -> Numbers:
        """Returns an input's numbers, which are those for any number of rows."""
        first, second = self.numbers(place)
        if not np.array_equal(first, second):
            raise NotByPartError("the number of rows decides about it")
        return first

    @staticmethod
    def _known(found: T | None) -> T:
        if found is None:
            raise NotByPartError("an unknown size")
        return found

    def axes(self, place: int, of: int = 0) -> list[int]:
        """Returns the axes that an input names, as numbers from 0.

        Args:
            of: the place of the tensor whose axes they are.
        """
        return [int(axis) % self.rank(of) for axis in np.ravel(self.constant(place))]

    def letters(self, place: int = 0, combined: Iterable[int] = ()) -> str:
        """Returns a term of an equation: a letter for each axis but those that are combined."""
        rank = self.rank(place)
        without = [axis % rank for axis in combined]
        return "".join("_" if axis in without else _LETTERS[axis] for axis in range(rank))

    @property
    def divided(self) -> list[int]:
        """The places of the inputs with rows."""
        return [place for place, value in enumerate(self.values) if value.has_rows]

    def of_rows(self, place: int = 0) -> Value:
        """Returns what is known of an input, which has to be the only one with rows."""
        if self.divided != [place]:
            raise NotByPartError("rows in another input")
        return self.values[place]

    def beside(self, place: int, wanted: Value) -> Want:
        """Returns what to get for an input beside rows: its rows, or all of one entry.

        Args:
            wanted: where its rows are. A negative axis has one entry for all rows.
        """
        if wanted.axis < 0:
            return SAME
        if self.values[place] == wanted:
            return wanted
        size = self.size(wanted.axis, place)
        if size == (1, 1):
            return SAME
        if not is_count(size, wanted):
            raise NotByPartError("another size beside the rows")
        return wanted

    def split(
        self,
        results: Value | Values,
        *wants: Want,
        make: Make | None = None,
    ) -> Split:
        """Returns how it is computed.

        Args:
            results: what the outputs are; one value is that of all outputs.
            wants: what it gets as the first inputs; the others are SAME.
        """
        others = len(self.node.inputs) - len(wants)
        return Split(
            self.node,
            [results] * len(self.node.outputs) if isinstance(results, Value) else results,
            [*wants, *[SAME] * others],
            make,
        )


Rule = Callable[[Operation], Split]
Rules = dict[str, Rule]  # by the type of the operation
