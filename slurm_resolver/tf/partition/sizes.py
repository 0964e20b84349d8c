"""Shapes, and numbers that are computed of sizes, as symbols of the number of rows N.

TensorFlow's own shape inference is asked in a scratch graph, for an N of 840 and of 1,260.
Both are highly composite, so that a batch can be divided into parts there. What is true of both is
true of any N: a number that `exactness` does not vouch for is left out.

For example, a tensor whose first size is 1,680 for one and 2,520 for the other has 2 · N
places there: two batches one after another. A size that is 128 in both is a constant of the
program. One that is 840 in both is such a constant as well, and no number of rows::

    first N       second N       means
    840           1,260          N
    1,680         2,520          2 · N
    4,200         6,300          5 · N, such as rows of 5 numbers that are reshaped into one axis
    128           128            128
    840           840            840
    0             0              nothing, if it is N % 3: `exactness` does not vouch for it
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import tensorflow as tf

from slurm_resolver.tf.partition.exactness import (
    DECIDED_BY_NUMBERS,
    STEPS,
    axes_of_slice,
    batches,
    count_of_extremes,
    has_bit,
    is_exact,
    is_whole,
    line,
)
from slurm_resolver.tf.partition.inlining import Flat, Node
from slurm_resolver.tf.partition.scratch import Scratch
from slurm_resolver.tf.partition.values import (
    COUNTS,
    SAME,
    NotByPartError,
    Pair,
    Samples,
    Shape,
    TensorNumbers,
    Tensors,
    Value,
    names,
)

OPAQUE = (tf.resource, tf.variant)
_CALLS = names("Case If StatelessCase StatelessIf StatelessWhile While")
_FEW = 64  # entries of an integer tensor that may be a shape or axes
_MANY = 2**22  # entries whose numbers are not computed, such as those of `tf.range(N * N)`


def is_count(sizes: Pair[int] | None, value: Value) -> bool:
    """Whether the sizes for both N are those of an axis with rows: outer · N · inner."""
    return batches(sizes, value.inner) == value.outer


class SizesOf:
    """The sizes in a graph.

    Args:
        flat: the graph.
        values: what is known of tensors, by number.
        scratch: where they are inferred, also those of other graphs.
    """

    def __init__(self, flat: Flat, values: dict[int, Value], scratch: Scratch) -> None:
        self.flat = flat
        self.scratch = scratch
        self._values = values
        self._pairs: dict[int, Tensors] = {}  # a tensor of the scratch graph for each N, by number

    def bind(
        self,
        number: int,
        shape: Shape | None,
        numbers: Sequence[npt.ArrayLike] | None = None,
    ) -> None:
        """Notes what is known of a tensor from elsewhere."""
        dtype = self.flat.tensors[number].dtype
        if numbers:
            self._pairs[number] = [self.scratch.constant(one, dtype) for one in numbers]
        elif shape is not None:
            self._place(number, shape)

    def shape(self, number: int) -> Shape | None:
        """Returns the size of each axis for both N, or None for it; None for an unknown rank."""
        known = self._known_shape(number)
        return _shape(self._pair(number)) if known is None else known

    def size(self, number: int, axis: int) -> Pair[int] | None:
        """Returns the size along an axis for both N; None if it is unknown."""
        return dict(enumerate(self.shape(number) or ())).get(axis)

    def numbers(self, number: int) -> Samples | None:
        """Returns a tensor's numbers for both N, as arrays; None if they are unknown."""
        first, second = map(self.scratch.numbers, self._pair(number))
        return None if first is None or second is None else (first, second)

    def are(self, number: int, expected: Iterable[npt.ArrayLike]) -> bool:
        """Whether a tensor is known to have these numbers for both N, in any shape."""
        found = self.numbers(number)
        return found is not None and all(
            map(np.array_equal, map(np.ravel, found), map(np.ravel, expected))
        )

    def known(self, number: int) -> tuple[Shape | None, Sequence[Any] | None]:
        """Returns the shape of a tensor, and its numbers if it may be a shape, for `bind`."""
        tensor = self.flat.tensors[number]
        # The numbers of all rows are no sizes.
        is_small = tensor.shape.num_elements() in range(_FEW)
        numbers = self.numbers(number) if is_small and tensor.dtype.is_integer else None
        return self.shape(number), numbers and [one.tolist() for one in numbers]

    def limits_of_slice(
        self, node: Node, place: int, size: Pair[int] | None
    ) -> list[Sequence[float]] | None:
        """Returns where a StridedSlice begins and ends along an axis for both N.

        Args:
            place: in the specification.
            size: of the axis; None if it is unknown.

        Returns:
            None if a limit is unknown, or may be beyond the axis for another N.
        """
        if size is None:
            return None
        whole = line(*size)
        limits = []
        for mask, default, number in zip(("begin", "end"), ((0, 0), size), node.inputs[1:]):
            is_open = has_bit(node.operation, mask, place)
            pair = default if is_open else [one[place] for one in self.numbers(number) or ()]
            if not pair:
                return None
            limit = line(*map(int, pair))
            limits.append(limit + whole if limit.max() < 0 else limit)  # counted from the end
        is_within = np.diff([*limits, whole], axis=0, prepend=0).min() >= 0
        return [limit[1:].tolist() for limit in limits] if is_within else None

    def _known_shape(self, number: int) -> Shape | None:
        """Returns the shape if nothing but the number of rows is unknown since the tracing."""
        traced = self.flat.tensors[number].shape
        if traced.rank is None:
            return None
        value = self._values.get(number, SAME)
        shape = [(size, size) for size in traced.as_list()]
        if value.has_rows and traced[value.axis] is None:
            first, second = (value.outer * count * value.inner for count in COUNTS)
            shape[value.axis] = (first, second)
        return None if (None, None) in shape else shape

    def _pair(self, number: int) -> Tensors:
        """Returns the tensor for both N in the scratch graph."""
        waiting = [number]
        while waiting:
            one = waiting[-1]
            node = self.flat.makers.get(one)
            if one in self._pairs:
                waiting.pop()
            elif not node or self._is_enough(one, node):
                self._place(one, self._known_shape(one))
            else:
                missing = [other for other in node.inputs if other not in self._pairs]
                waiting += missing
                if not missing:
                    self._infer(node)
        return self._pairs[number]

    def _is_enough(self, number: int, node: Node) -> bool:
        """Whether only the shape of a tensor can matter, and is known or cannot be inferred."""
        operation = node.operation
        if node.kind in _CALLS or any(
            one.dtype in OPAQUE for one in (*operation.inputs, *operation.outputs)
        ):
            return True
        traced = self.flat.tensors[number]
        size = traced.shape.num_elements()
        may_be_sizes = not traced.dtype.is_floating and (size is None or size < _FEW)
        return not may_be_sizes and self._known_shape(number) is not None

    def _place(self, number: int, shape: Shape | None) -> None:
        """Makes placeholders for a tensor whose numbers are unknown."""
        traced = self.flat.tensors[number]
        # Equal ones are the same tensor: what is unknown of both N is not told apart.
        self._pairs[number] = [
            self.scratch.placeholder(
                traced.dtype,
                traced.shape if shape is None else [size and size[turn] for size in shape],
            )
            for turn in range(2)
        ]

    def _infer(self, node: Node) -> None:
        """Infers the results of an operation for both N, or what is certain of their shapes.

        A size of N / 2 is rounded if N is odd, which the samples do not show.
        """
        given = [self._pairs[one] for one in node.inputs]
        try:
            first, second = (
                self.scratch.copy(node.operation, [pair[turn] for pair in given])
                for turn in range(2)
            )
            doubts = self._doubts(node)
        except (ValueError, TypeError, tf.errors.OpError, NotByPartError):
            for number in node.outputs:
                self._place(number, None)
            return
        exact = doubts == [] and is_exact(node.operation, map(self.numbers, node.inputs))
        for number, *pair in zip(node.outputs, first, second):
            if number in self._pairs:
                continue
            traced = self.flat.tensors[number].shape
            shape = _shape(pair)
            certain = list(shape or ())
            for axis, sizes in enumerate(certain):
                if sizes and traced[axis] is None:
                    is_doubtful = sizes[0] == sizes[1] if doubts is None else axis in doubts
                    if is_doubtful or not _is_polynomial(*sizes):
                        certain[axis] = None
            is_certain = pair[0] is pair[1] or (exact and certain == shape)
            if not is_certain or (pair[0].shape.num_elements() or 0) > _MANY:
                self._place(number, shape and certain)
                continue
            self._pairs[number] = pair
            if exact and traced.rank in (0, 1):
                self.bind(
                    number,
                    None,
                    self.numbers(number),
                )

    def _doubts(self, node: Node) -> Sequence[int] | None:
        """Returns the axes of a result whose sizes may be a coincidence.

        None stands for all axes of equal sizes, where N says which part is taken.
        """
        if not self._are_alike(node.inputs[: count_of_extremes(node.operation)]):
            raise NotByPartError("the larger or the smaller one of several sizes")
        steps = node.kind in STEPS and self.numbers(node.inputs[STEPS[node.kind]])
        if steps and np.any(np.abs(steps) != 1):
            return None
        if node.kind != "StridedSlice":
            first = DECIDED_BY_NUMBERS.get(node.kind, len(node.inputs))
            return [] if self._are_alike(node.inputs[first:]) else None
        shape = _shape(self._pairs[node.inputs[0]])
        if not shape or not self._are_alike(node.inputs[3:]):
            return range(254)  # TensorFlow has no more
        axes = axes_of_slice(node.operation, len(shape))
        return [
            result
            for result, (axis, place) in enumerate(zip(*axes))
            if axis >= 0
            and not is_whole(node.operation, place)
            and not self.limits_of_slice(node, place, shape[axis])
        ]

    def _are_alike(self, numbers: TensorNumbers) -> bool:
        """Whether tensors do not depend on N."""
        return all(one is other for one, other in map(self._pairs.__getitem__, numbers))


def _shape(pair: Tensors) -> Shape | None:
    """Returns the sizes of a tensor for both N; None for an unknown rank."""
    first, second = (one.shape for one in pair)
    if None in (first.rank, second.rank):
        return None
    pairs = zip(first.as_list(), second.as_list())
    return [None if None in sizes else sizes for sizes in pairs]


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
