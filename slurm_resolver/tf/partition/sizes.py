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

from collections.abc import Collection, Iterable, Mapping
from typing import Any

import numpy.typing as npt
import tensorflow as tf

from slurm_resolver.tf.partition.exactness import DECIDED_BY_NUMBERS, is_exact
from slurm_resolver.tf.partition.inlining import Flat, Node
from slurm_resolver.tf.partition.slice_limits import axes_of_slice, certain_limits, is_whole
from slurm_resolver.tf.partition.values import (
    COUNTS,
    SAME,
    Pair,
    Samples,
    Shape,
    Shapes,
    T,
    TensorNumbers,
    Tensors,
    Value,
    as_tuple,
    names,
)

OPAQUE = (tf.resource, tf.variant)
_CALLS = names("Case If StatelessCase StatelessIf StatelessWhile While")
_ALL_AXES = range(254)  # TensorFlow has no more
_FEW = 64  # entries of an integer tensor that may be a shape or axes
_MANY = 2**22  # entries whose numbers are not computed, such as those of `tf.range(N * N)`


def sizes_of(outer: int, inner: int) -> list[int]:
    """Returns outer · N · inner for both N."""
    return [outer * count * inner for count in COUNTS]


def batches(sizes: Shape | None, inner: int = 1) -> int | None:
    """Returns how many batches of N · inner places the sizes for both N are; None for others."""
    if sizes is None:
        return None
    outer = int(sizes[0] or 0) // (COUNTS[0] * inner)
    return outer if list(sizes) == sizes_of(outer, inner) else None


def is_count(sizes: Shape | None, value: Value) -> bool:
    """Whether the sizes for both N are those of an axis with rows: outer · N · inner."""
    return batches(sizes, value.inner) == value.outer


class SizesOf:
    """The sizes in a graph.

    Args:
        flat: the graph.
        values: what is known of tensors, by number.
    """

    def __init__(self, flat: Flat, values: Mapping[int, Value]) -> None:
        self.flat = flat
        self._values = values
        self._scratch: dict[int, Tensors] = {}  # a tensor for each N, by number
        self._shapes: dict[int, Shapes] = {}  # that are known from elsewhere

    def bind(
        self,
        number: int,
        shapes: Shapes | None,
        numbers: Pair[npt.ArrayLike] | None = None,
    ) -> None:
        """Notes what is known of a tensor from elsewhere."""
        if shapes:
            self._shapes[number] = shapes
        if numbers:
            dtype = self.flat.tensors[number].dtype
            self._scratch[number] = [self.flat.scratch.constant(one, dtype) for one in numbers]

    def shape(self, number: int) -> Shapes | None:
        """Returns the shape for both N, with None for unknown sizes; None for an unknown rank."""
        return self._known_shape(number) or _shapes(self._scratched(number))

    def size(self, number: int, axis: int) -> Pair[int] | None:
        """Returns the size along an axis for both N; None if it is unknown."""
        shapes = self.shape(number)
        if not shapes or axis >= len(shapes[0]):
            return None
        return _if_known(*(shape[axis] for shape in shapes))

    def numbers(self, number: int) -> Samples | None:
        """Returns a tensor's numbers for both N, as arrays; None if they are unknown."""
        return _if_known(*map(self.flat.scratch.numbers, self._scratched(number)))

    def known(self, number: int) -> tuple[Shapes | None, Pair[Any] | None]:
        """Returns the shape of a tensor, and its numbers if it may be a shape, for `bind`."""
        return self.shape(number), self.small_numbers(number)

    def small_numbers(self, number: int) -> Pair[Any] | None:
        """Returns the numbers of a tensor that may be a shape, as tuples; None for all others."""
        tensor = self.flat.tensors[number]
        # The numbers of all rows are no sizes.
        is_small = tensor.shape.rank in (0, 1) and tensor.shape.is_fully_defined()
        return as_tuple(self.numbers(number)) if is_small and tensor.dtype.is_integer else None

    def _known_shape(self, number: int) -> Shapes | None:
        """Returns the shape if nothing but the number of rows is unknown since the tracing."""
        shape = self.flat.tensors[number].shape
        if number in self._shapes or shape.rank is None:
            return self._shapes.get(number)
        value = self._values.get(number, SAME)
        first, second = shape.as_list(), shape.as_list()
        if value.has_rows and first[value.axis] is None:
            first[value.axis], second[value.axis] = sizes_of(value.outer, value.inner)
        return None if None in first else (first, second)

    def _scratched(self, number: int) -> Tensors:
        """Returns the tensor for both N in the scratch graph."""
        waiting = [number]
        while waiting:
            one = waiting[-1]
            node = self.flat.makers.get(one)
            if one in self._scratch:
                waiting.pop()
            elif not node or self._is_enough(one, node):
                self._place(one, self._known_shape(one))
            else:
                missing = [other for other in node.inputs if other not in self._scratch]
                waiting += missing
                if not missing:
                    self._copy(node)
        return self._scratch[number]

    def _is_enough(self, number: int, node: Node) -> bool:
        """Whether only the shape of a tensor can matter, and is known or cannot be inferred."""
        if node.kind in _CALLS or any(
            one.dtype in OPAQUE for one in (*node.operation.inputs, *node.operation.outputs)
        ):
            return True
        traced = self.flat.tensors[number]
        size = traced.shape.num_elements()
        if not traced.dtype.is_floating and (size is None or size < _FEW):
            return False
        return self._known_shape(number) is not None

    def _place(self, number: int, shapes: Shapes | None) -> None:
        """Makes placeholders for a tensor whose numbers are unknown."""
        traced = self.flat.tensors[number]
        # Equal ones are the same tensor: what is unknown of both N is not told apart.
        self._scratch[number] = [
            self.flat.scratch.placeholder(traced.dtype, shape)
            for shape in shapes or [traced.shape] * 2
        ]

    def _copy(self, node: Node) -> None:
        """Infers the results of an operation for both N, or what is certain of their shapes."""
        try:
            results = self._inferred(node)
        except (ValueError, TypeError, tf.errors.OpError):
            for number in node.outputs:
                self._place(number, None)
            return
        parts = self._parts(node)
        exact = not parts and is_exact(node.operation, map(self.numbers, node.inputs))
        for number, pair in zip(node.outputs, results):
            if number not in self._scratch:
                self._note(
                    number,
                    pair,
                    parts,
                    exact,
                )

    def _inferred(self, node: Node) -> Iterable[Tensors]:
        """Returns the results of an operation, as TensorFlow infers them for both N."""
        given = [self._scratch[one] for one in node.inputs]
        return zip(
            *(
                self.flat.scratch.copy(node.operation, [pair[turn] for pair in given])
                for turn in range(2)
            )
        )

    def _note(
        self,
        number: int,
        pair: Tensors,
        parts: Collection[int],
        exact: bool,
    ) -> None:
        """Notes what is certain of a result.

        Args:
            pair: as TensorFlow infers it.
            parts: see `_parts`.
            exact: whether its numbers are those for any N.
        """
        traced = self.flat.tensors[number].shape
        shapes = _shapes(pair)
        certain = shapes and _certain(
            traced,
            shapes,
            parts,
        )
        is_certain = pair[0] is pair[1] or (exact and certain == shapes)
        if not is_certain or (pair[0].shape.num_elements() or 0) > _MANY:
            self._place(number, certain)
            return
        self._scratch[number] = pair
        if exact and traced.rank in (0, 1):
            self.bind(
                number,
                None,
                self.numbers(number),
            )

    def _parts(self, node: Node) -> Collection[int]:
        """Returns the axes of a result along which N says which part is taken."""
        if node.kind == "StridedSlice":
            return self._parts_of_slice(node)
        first = DECIDED_BY_NUMBERS.get(node.kind, len(node.inputs))
        return () if self._are_alike(node.inputs[first:]) else _ALL_AXES

    def _are_alike(self, numbers: TensorNumbers) -> bool:
        """Whether tensors do not depend on N."""
        return all(one is other for one, other in map(self._scratch.__getitem__, numbers))

    def _parts_of_slice(self, node: Node) -> Collection[int]:
        shapes = _shapes(self._scratch[node.inputs[0]])
        count = node.operation.inputs[1].shape.num_elements()
        if shapes is None or count is None or not self._are_alike(node.inputs[3:]):
            return [*_ALL_AXES]
        sizes = list(zip(*shapes))
        limits = list(map(self.numbers, node.inputs[1:3]))
        axes, places = axes_of_slice(
            node.operation,
            count,
            len(sizes),
        )
        return [
            result
            for result, (axis, place) in enumerate(zip(axes, places))
            if axis >= 0
            and not is_whole(node.operation, place)
            and not certain_limits(
                node.operation,
                place,
                limits,
                sizes[axis],
            )
        ]


def _if_known(first: T | None, second: T | None) -> Pair[T] | None:
    """Returns what is known for both N; None if it is unknown for one of them."""
    return None if first is None or second is None else (first, second)


def _shapes(pair: Tensors) -> Shapes | None:
    """Returns the shapes of a tensor for both N as lists; None for an unknown rank."""
    first, second = (one.shape for one in pair)
    return None if None in (first.rank, second.rank) else (first.as_list(), second.as_list())


def _is_polynomial(one: int, other: int) -> bool:
    """Whether two sizes may be values of a polynomial of N whose coefficients are whole numbers.

    Its value for one N differs from that for the other by a multiple of the difference of both N,
    and so do the quotients by N. Those of N · N / 2 do not.
    """
    while one != other:
        if (other - one) % (COUNTS[1] - COUNTS[0]):
            return False
        one //= COUNTS[0]
        other //= COUNTS[1]
    return True


def _certain(traced: tf.TensorShape, shapes: Shapes, parts: Collection[int]) -> Shapes:
    """Returns the shapes of a result for both N, with None for sizes that may differ for other N.

    A size of N / 2 is rounded if N is odd, which the samples do not show.

    Args:
        traced: the shape that is known since the tracing.
        parts: axes whose sizes may be a coincidence; of all axes, only equal sizes may be one.
    """
    first, second = map(list, shapes)
    known = traced if traced.rank is not None else [None] * len(first)
    for axis, (static, one, other) in enumerate(zip(known, *shapes)):
        is_part = axis in parts and (one == other or parts is not _ALL_AXES)
        if static is None and (
            is_part or one is None or other is None or not _is_polynomial(one, other)
        ):
            first[axis] = second[axis] = None
    return first, second
