"""Shapes, and numbers that are computed of sizes, as symbols of the number of rows N.

TensorFlow's own shape inference is asked in a scratch graph, for an N of 27,720 and of 32,760.
Both are highly composite, so that a batch can be divided into parts there. What is true of both is
true of any N: a number that `exactness` does not vouch for is left out.

For example, a tensor whose first size is 55,440 for one and 65,520 for the other has 2 · N
places there: two batches one after another. A size that is 128 in both is a constant of the
program. One that is 27,720 in both is such a constant as well, and no number of rows::

    first N       second N       means
    27,720        32,760         N
    55,440        65,520         2 · N
    138,600       163,800        5 · N, such as rows of 5 numbers that are reshaped into one axis
    128           128            128
    27,720        27,720         27,720
    0             0              nothing, if it is N % 3: `exactness` does not vouch for it
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any, Callable

import numpy as np
import tensorflow as tf

from slurm_resolver.tf.partition.exactness import DIVIDING, TAKING, TELLING, is_exact
from slurm_resolver.tf.partition.inlining import Flat, Node
from slurm_resolver.tf.partition.slice_limits import axes_of_slice, has_certain_size
from slurm_resolver.tf.partition.values import COUNTS, Value

Pair = tuple[Any, Any]  # for each of these N

_OPAQUE = (tf.resource, tf.variant)
_CALLS = ("Case", "If", "StatelessCase", "StatelessIf", "StatelessWhile", "While")
_FEW = 64  # entries of an integer tensor that may be a shape or axes


def is_count(pair: Pair | None, outer: int, inner: int) -> bool:
    """Whether a size is outer · N · inner."""
    if pair is None:
        return False
    return all(size == outer * count * inner for size, count in zip(pair, COUNTS))


class SizesOf:
    """The sizes in a graph.

    Args:
        flat: the graph.
        value_of: returns what is known of a tensor, given its number; None if nothing is yet.
    """

    def __init__(self, flat: Flat, value_of: Callable[[int], Value | None]) -> None:
        self._flat = flat
        self.value_of = value_of
        self._scratch: dict[int, Pair] = {}  # tensors, by number
        self._shapes: dict[int, Pair] = {}

    def bind(
        self,
        number: int,
        shapes: Pair | None,
        numbers: Pair | None = None,
    ) -> None:
        """Notes what is known of a tensor from elsewhere."""
        if shapes is not None:
            self._shapes[number] = shapes
        if numbers is not None:
            dtype = self._flat.tensors[number].dtype
            first, second = numbers
            constant = self._flat.scratch.constant
            self._scratch[number] = constant(first, dtype), constant(second, dtype)

    def maker(self, number: int) -> Node | None:
        """Returns the node that computes a tensor; None for an input of the graph."""
        return self._flat.makers.get(number)

    def shape(self, number: int) -> Pair | None:
        """Returns the shape for both N, with None for unknown sizes; None for an unknown rank."""
        if number in self._shapes:
            return self._shapes[number]
        found = self._quick(number)
        if found is None:
            first, second = (one.shape for one in self._scratched(number))
            if None in (first.rank, second.rank):
                return None
            found = first.as_list(), second.as_list()
        if None not in found[0]:
            self._shapes[number] = found
        return found

    def size(self, number: int, axis: int) -> Pair | None:
        """Returns the size along an axis for both N; None if it is unknown."""
        shapes = self.shape(number)
        if shapes is None:
            return None
        first, second = (shape[axis] for shape in shapes)
        return None if None in (first, second) else (first, second)

    def numbers(self, number: int) -> Pair | None:
        """Returns a tensor's numbers for both N, as arrays; None if they are unknown."""
        if self._flat.tensors[number].dtype in _OPAQUE:
            return None
        first, second = map(self._flat.scratch.numbers, self._scratched(number))
        return None if first is None or second is None else (first, second)

    def _quick(self, number: int) -> Pair | None:
        """Returns the shape if nothing but the number of rows is unknown since the tracing."""
        shape = self._flat.tensors[number].shape
        if shape.rank is None:
            return None
        value = self.value_of(number)
        found = []
        for count in COUNTS:
            sizes = shape.as_list()
            if value is not None and value.has_rows and sizes[value.axis] is None:
                sizes[value.axis] = value.outer * count * value.inner
            found.append(sizes)
        return None if None in found[0] else (found[0], found[1])

    def _scratched(self, number: int) -> Pair:
        """Returns the tensor for both N in the scratch graph."""
        waiting = [number]
        while waiting:
            one = waiting[-1]
            node = self._flat.makers.get(one)
            if one in self._scratch:
                waiting.pop()
            elif node is None or self._is_enough(one, node):
                self._place(one, self._shapes.get(one) or self._quick(one))
            elif not self._tell(node):
                missing = [other for other in node.inputs if other not in self._scratch]
                waiting += missing
                if not missing:
                    self._copy(node)
        return self._scratch[number]

    def _is_enough(self, number: int, node: Node) -> bool:
        """Whether only the shape of a tensor can matter, and is known or cannot be inferred."""
        operation = node.operation
        tensors = (*operation.inputs, *operation.outputs)
        if operation.type in _CALLS or any(one.dtype in _OPAQUE for one in tensors):
            return True
        traced = self._flat.tensors[number]
        size = traced.shape.num_elements()
        decides = not traced.dtype.is_floating and (size is None or size < _FEW)
        if decides or operation.type == "Const":
            return False
        return self._quick(number) is not None

    def _place(self, number: int, shapes: Pair | None) -> None:
        """Makes placeholders for a tensor whose numbers are unknown."""
        traced = self._flat.tensors[number]
        dtype = tf.float32 if traced.dtype in _OPAQUE else traced.dtype
        first, second = shapes or (traced.shape, traced.shape)
        # Equal ones are the same tensor: what is unknown of both N is not told apart.
        place = self._flat.scratch.placeholder
        self._scratch[number] = place(dtype, first), place(dtype, second)

    def _tell(self, node: Node) -> bool:
        """Makes constants of the sizes that an operation tells; returns whether it could."""
        kind = node.operation.type
        shapes = [self.shape(one) for one in node.inputs] if kind in TELLING else [None]
        if any(one is None or None in one[0] for one in shapes):
            return False
        for number, pair in zip(node.outputs, shapes):
            assert pair is not None
            sizes = (np.prod(pair[0]), np.prod(pair[1])) if kind == "Size" else pair
            self.bind(
                number,
                None,
                sizes,
            )
        return True

    def _copy(self, node: Node) -> None:
        """Makes an operation for both N, or placeholders for what is not certain of it."""
        copy = self._flat.scratch.copy
        given = [self._scratch[one] for one in node.inputs]
        try:
            first = copy(node.operation, [pair[0] for pair in given])
            second = copy(node.operation, [pair[1] for pair in given])
        except (ValueError, TypeError, tf.errors.OpError):
            for number in node.outputs:
                self._place(number, None)
            return
        for number, pair in zip(node.outputs, zip(first, second)):
            if number not in self._scratch:
                self._note(
                    node,
                    number,
                    pair,
                )

    def _note(self, node: Node, number: int, pair: Pair) -> None:
        """Notes a result, or what is certain of its shape."""
        traced = self._flat.tensors[number]
        others = [self._scratch[one] for one in node.inputs[1:]]
        # Whether N says which part is taken.
        is_part = node.operation.type in TAKING and any(one is not other for one, other in others)
        shapes = [one.shape for one in pair]
        fractions = {*self._fractions(node, shapes), *self._moved_axes(node, pair)}
        if pair[0] is not pair[1] and (is_part or fractions or not self._is_exact(node)):
            certain: Collection[int] = ()
            if not is_part or node.operation.type == "StridedSlice":
                certain = range(pair[0].shape.rank or 0)
            self._place(
                number,
                _certain(
                    traced.shape,
                    shapes,
                    certain,
                    fractions,
                ),
            )
            return
        self._scratch[number] = pair
        if pair[0] is not pair[1] and traced.dtype.is_integer and traced.shape.rank in (0, 1):
            self.bind(
                number,
                None,
                self.numbers(number),
            )

    def _fractions(self, node: Node, shapes: Sequence[Any]) -> Collection[int]:
        """Returns the axes of a result that have a part of the rows, such as every second one.

        Half of an odd N is rounded, which the samples do not show. An operation that divides an
        axis without a remainder fails in one process for other N.
        """
        if node.operation.type in DIVIDING or None in [shape.rank for shape in shapes]:
            return ()
        found = []
        for axis, (one, other) in enumerate(zip(*shapes)):
            if (
                one != other
                and None not in (one, other)
                and (other - one) % (COUNTS[1] - COUNTS[0])
            ):
                found.append(axis)
        given = [size for number in node.inputs if found for size in self._sizes_of(number)]
        return [axis for axis in found if (shapes[0][axis], shapes[1][axis]) not in given]

    def _sizes_of(self, number: int) -> Sequence[Pair]:
        """Returns the sizes of a tensor for both N, by axis."""
        first, second = (one.shape for one in self._scratch[number])
        return [] if None in (first.rank, second.rank) else list(zip(first, second))

    def _is_exact(self, node: Node) -> bool:
        """Whether a result for both N is so for any N."""
        numbers = [
            self.numbers(one) if self._flat.tensors[one].dtype.is_integer else None
            for one in node.inputs
        ]
        return is_exact(node.operation, numbers)

    def _moved_axes(self, node: Node, pair: Pair) -> Collection[int]:
        """Returns the axes of a slice whose limits may be beyond it for some N."""
        operation = node.operation
        if operation.type != "StridedSlice" or pair[0] is pair[1]:
            return ()
        given = self._sizes_of(node.inputs[0])
        count = operation.inputs[1].shape.num_elements()
        if not given or count is None:
            return range(pair[0].shape.rank or 0)
        limits = [self.numbers(one) for one in node.inputs[1:3]]
        axes, places = axes_of_slice(operation, count, len(given))
        return [
            result
            for result, (axis, place) in enumerate(zip(axes, places))
            if axis >= 0
            and not has_certain_size(
                operation,
                place,
                limits,
                given[axis],
            )
        ]


def _certain(
    traced: Any,
    shapes: Sequence[Any],
    axes: Collection[int],
    fractions: Collection[int],
) -> Pair | None:
    """Returns the shapes of a result for both N, with None for sizes that may differ for other N.

    Args:
        traced: the shape that is known since the tracing.
        axes: those whose sizes are certain. Along others, equal sizes may be a coincidence.
        fractions: those whose sizes are not certain, also if they are not equal.
    """
    if any(shape.rank is None for shape in shapes):
        return None
    known = traced if traced.rank is not None else [None] * shapes[0].rank
    kept = [
        static is not None or (axis not in fractions and (axis in axes or one != other))
        for axis, (static, one, other) in enumerate(zip(known, *shapes))
    ]
    first, second = (
        [size if is_kept else None for size, is_kept in zip(shape, kept)] for shape in shapes
    )
    return first, second
