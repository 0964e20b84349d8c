"""The emission: writes the graph of a plan for one replica, which has some rows of the batch."""

from __future__ import annotations

from collections.abc import Generator, Sequence
from typing import Any, Callable

import tensorflow as tf

from slurm_resolver.tf.partition.collectives import (
    Buckets,
    OwnRows,
    own_part,
    received,
    sent_part,
)
from slurm_resolver.tf.partition.creation import Creator
from slurm_resolver.tf.partition.inlining import Flat, Node
from slurm_resolver.tf.partition.plan import Compute, Plan, PutTogether
from slurm_resolver.tf.partition.values import (
    LOCAL,
    SAME,
    SUM,
    Kind,
    Literal,
    Sizes,
    Value,
    Want,
)

AddUp = Callable[[list[Any]], list[Any]]


class Emission:
    """Writes a plan for a replica.

    Args:
        plan: of a graph.
        rows: that the replica has.
        inputs: tensors for the graph's inputs; parts of those that have rows.
        add_up: returns the sums of vectors over all replicas, in conditions and loops.
    """

    def __init__(
        self,
        plan: Plan,
        rows: OwnRows,
        inputs: Sequence[Any],
        add_up: AddUp | None = None,
    ) -> None:
        self._plan = plan
        self.rows = rows
        self._add_up = add_up
        self._creator = Creator()
        self._parts: dict[int, Any] = {}  # what the replica has of tensors that are not SAME
        self._wholes: dict[int, Any] = {}
        self._converted: dict[tuple[int, Want], Any] = {}
        self._computed: dict[Node, Compute] = {}
        self._shapes: dict[Any, Any] = {}  # that were told, by what is known of them
        for number, tensor in zip(plan.flat.inputs, inputs):
            self._set(
                number,
                plan.inputs[number],
                tensor,
            )

    def run(self) -> Generator[list[Any], list[Any], list[Any]]:
        """Writes the graph.

        Yields:
            Vectors, and takes their sums over all replicas.

        Returns:
            The outputs.
        """
        for step in self._plan.steps:
            if isinstance(step, PutTogether):
                yield from self._put_together(step.numbers)
            else:
                self._compute(step)
        pairs = zip(self._plan.flat.outputs, self._plan.wanted)
        return [self.get(number, want) for number, want in pairs]

    def inside(self, plan: Plan, inputs: Sequence[Any]) -> list[Any]:
        """Writes a function that an operation calls, and returns its outputs."""
        written = Emission(
            plan,
            self.rows,
            inputs,
            self._add_up,
        )
        return written.all(self._add_up)

    def all(self, add_up: AddUp | None) -> list[Any]:
        """Writes the graph with its collectives, and returns the outputs."""
        written = self.run()
        try:
            vectors = next(written)
            while True:
                assert add_up, "a plan with collectives in conditions or loops"
                vectors = written.send(add_up(vectors))
        except StopIteration as end:
            outputs: list[Any] = end.value
            return outputs

    def _set(
        self,
        number: int,
        value: Value,
        tensor: Any,
    ) -> None:
        """Notes what the replica has of a tensor."""
        known = self._wholes if value.kind is Kind.SAME else self._parts
        known[number] = tensor

    def _compute(self, step: Compute) -> None:
        """Writes an operation."""
        node = step.node
        self._computed[node] = step
        inputs = [self.get(number, want) for number, want in zip(node.inputs, step.split.wants)]
        if step.split.make:
            outputs = step.split.make(self, node, inputs)
        else:
            outputs = self.create(node, inputs)
        for number, value, tensor in zip(node.outputs, step.split.results, outputs):
            self._keep_shape(number, value, tensor)
            self._set(number, value, tensor)

    def _keep_shape(
        self,
        number: int,
        value: Value,
        tensor: Any,
    ) -> None:
        """Gives a tensor the shape that is known since the step was traced."""
        shape = self._plan.flat.tensors[number].shape
        if shape.rank is None or tensor.dtype in (tf.variant, tf.resource):
            return
        if value.has_rows:
            sizes = shape.as_list()
            sizes[value.axis] = None
            shape = tf.TensorShape(sizes)
        tensor.set_shape(shape)

    def create(self, node: Node, inputs: Sequence[Any]) -> list[Any]:
        """Creates an operation as it was traced, with other inputs."""
        return self._creator.create(node.operation, inputs)

    def as_traced(self, flat: Flat, inputs: Sequence[Any]) -> list[Any]:
        """Writes a function as it was traced, and returns its outputs."""
        tensors = dict(zip(flat.inputs, inputs))
        for node in flat.nodes:
            outputs = self.create(node, [tensors[number] for number in node.inputs])
            tensors.update(zip(node.outputs, outputs))
        return [tensors[number] for number in flat.outputs]

    # --- Tensors ---------------------------------------------------------------------------------

    def get(self, number: int, want: Want) -> Any:
        """Returns a tensor as an operation wants it."""
        if isinstance(want, Literal):
            return tf.constant(want.array)
        if isinstance(want, Value) and want.is_list:
            return self._parts[number]
        if want == SAME:
            return self.whole(number)
        if want == LOCAL:
            return self._parts.get(number, self._wholes.get(number))
        if number in self._parts and self._value(number) == want:
            return self._parts[number]
        key = number, want
        if key not in self._converted:
            self._converted[key] = self._convert(number, want)
        return self._converted[key]

    def _convert(self, number: int, want: Sizes | Value) -> Any:
        """Returns a tensor as an operation wants it, which is made now."""
        if isinstance(want, Sizes):
            return self.sized(self.whole(number), want)
        return self._addend(number) if want == SUM else self._own(number, want)

    def _value(self, number: int) -> Value:
        """Returns what the part of a tensor is."""
        node = self._plan.flat.makers.get(number)
        if node is None:
            return self._plan.inputs[number]
        return self._computed[node].split.results[node.outputs.index(number)]

    def whole(self, number: int) -> Any:
        """Returns a whole tensor; one that each replica can compute for itself is computed now."""
        if number not in self._wholes:
            node = self._plan.flat.makers[number]
            inputs = [self.whole(one) for one in node.inputs]
            for output, tensor in zip(node.outputs, self.create(node, inputs)):
                self._wholes[output] = tensor
        return self._wholes[number]

    def _addend(self, number: int) -> Any:
        """Returns a tensor as an addend: a whole one counts in the first replica."""
        if number in self._parts and self._value(number) == LOCAL:
            return self.weighted(self._parts[number])
        whole = self.whole(number)
        return whole if self.rows.replica == 0 else tf.zeros_like(whole)

    def weighted(self, statistic: Any) -> Any:
        """Returns a replica's own statistic as an addend to the mean over all rows."""
        weight = tf.cast(self.rows.own / self.rows.total, statistic.dtype)
        return tf.math.multiply_no_nan(statistic, weight)  # that of no rows is NaN

    def _own(self, number: int, value: Value) -> Any:
        """Returns the replica's rows of a whole tensor."""
        node = self._plan.flat.makers.get(number)
        if node is not None and node.operation.type == "Fill":
            sizes = self.sized(self.whole(node.inputs[0]), value)
            return tf.fill(sizes, self.whole(node.inputs[1]))
        part = own_part(self.whole(number), value, self.rows)
        self._keep_shape(number, value, part)
        return part

    def sized(self, sizes: Any, want: Sizes | Value) -> Any:
        """Returns a vector of sizes of the whole batch, with this replica's in one place."""
        place = want.place if isinstance(want, Sizes) else want.axis
        own = tf.cast(self.rows.own * (want.outer * want.inner), sizes.dtype)
        return tf.concat([sizes[:place], [own], sizes[place + 1 :]], axis=0)

    def whole_shape(
        self,
        part: Any,
        value: Value,
        dtype: Any,
    ) -> Any:
        """Returns the shape of a whole tensor, given a replica's part."""
        if not value.has_rows:
            return tf.shape(part, out_type=dtype)
        sizes = part.shape.as_list() if part.shape.rank is not None else [None, None]
        is_known = sizes.count(None) == 1 and sizes[value.axis] is None
        key = value, tuple(sizes), dtype
        if is_known and key in self._shapes:
            return self._shapes[key]
        count = tf.cast(self.rows.total * (value.outer * value.inner), dtype)
        if is_known:
            sizes[value.axis] = count
            self._shapes[key] = tf.stack(sizes)
            return self._shapes[key]
        given = tf.shape(part, out_type=dtype)
        return tf.concat([given[: value.axis], [count], given[value.axis + 1 :]], axis=0)

    # --- Collectives -----------------------------------------------------------------------------

    def _put_together(self, numbers: Sequence[int]) -> Generator[list[Any], list[Any], None]:
        """Puts tensors together, at once."""
        values = [value if value.has_rows else SUM for value in map(self._value, numbers)]
        buckets = Buckets()
        places = [
            buckets.add(sent_part(self._sent(number), value, self.rows))
            for number, value in zip(numbers, values)
        ]
        sums = yield buckets.vectors()
        for number, value, total in zip(numbers, values, buckets.taken(sums, places)):
            traced = self._plan.flat.tensors[number]
            tensor = received(total, value, traced.dtype)
            tensor.set_shape(traced.shape)
            self._wholes[number] = tensor

    def _sent(self, number: int) -> Any:
        """Returns what is added up of a tensor."""
        part = self._parts[number]
        return self.weighted(part) if self._value(number) == LOCAL else part
