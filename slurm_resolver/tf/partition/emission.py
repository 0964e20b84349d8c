"""What a plan consists of, and the emission, which writes it for one replica.

Both are in this module, because a step of a plan may have its own function that writes it.
"""

from __future__ import annotations

import functools
from typing import Callable, NamedTuple, Union

import tensorflow as tf

from slurm_resolver.tf.partition.collectives import (
    OwnRows,
    own_places,
    received,
    sent_part,
)
from slurm_resolver.tf.partition.creation import attributes_of, create
from slurm_resolver.tf.partition.inlining import Flat, Node
from slurm_resolver.tf.partition.sizes import OPAQUE, SizesOf
from slurm_resolver.tf.partition.values import (
    LOCAL,
    SAME,
    SUM,
    Literal,
    Sizes,
    TensorNumbers,
    Tensors,
    Value,
    Values,
    Want,
    Wants,
)

AddUp = Callable[[list[tf.Tensor]], list[tf.Tensor]]
# Writes an operation, given the emission and its inputs; returns its outputs.
Make = Callable[["Emission", Tensors], Tensors]


class Split(NamedTuple):
    """A step of a plan: how a replica computes an operation.

    Attributes:
        node: the operation.
        results: what its outputs are.
        wants: what it gets as inputs.
        make: writes it; None if the operation stays as it is.
        reason: why it is computed whole; None if it is divided, or has no rows.
    """

    node: Node
    results: Values
    wants: Wants
    make: Make | None = None
    reason: str | None = None


class PutTogether(NamedTuple):
    """A step of a plan: what the replicas have of some tensors is put together, at once."""

    numbers: TensorNumbers


Step = Union[Split, PutTogether]


class Plan:
    """How a replica computes a graph.

    Attributes:
        flat: the graph.
        sizes: of its tensors.
        inputs: what a replica is given of the graph's inputs.
        steps: in their order.
        values: what is known of each tensor in the end, by number.
        outputs: what the graph's outputs are.
        wanted: what they are converted into.
        inner: returns the plan of a function that an operation calls.
    """

    flat: Flat
    sizes: SizesOf
    inputs: Values
    steps: list[Step]
    values: dict[int, Value]
    outputs: Values
    wanted: Wants
    inner: Callable[..., Plan]

    @property
    def levels(self) -> list[TensorNumbers]:
        """The tensors that are put together, for each collective."""
        return [step.numbers for step in self.steps if isinstance(step, PutTogether)]


class Emission:
    """Writes a plan for a replica.

    Args:
        plan: of a graph.
        rows: that the replica has.
        inputs: tensors for the graph's inputs; parts of those that have rows.
        add_up: returns the sums of tensors over all replicas.
        add_up_inside: the same in conditions and loops; see `step.plan_step`.
    """

    def __init__(
        self,
        plan: Plan,
        rows: OwnRows,
        inputs: Tensors,
        add_up: AddUp | None,
        add_up_inside: AddUp | None = None,
    ) -> None:
        self._plan = plan
        self.rows = rows
        self._add_up = add_up
        self._add_up_inside = add_up_inside
        # Tensors as they were computed, and as they have been converted.
        self._forms: dict[tuple[int, Want], tf.Tensor] = dict(
            zip(zip(plan.flat.inputs, plan.inputs), inputs)
        )

    def all(self) -> list[tf.Tensor]:
        """Writes the graph, and returns its outputs."""
        for step in self._plan.steps:
            if isinstance(step, PutTogether):
                self._put_together(step.numbers)
                continue
            node, results, wants, make, _ = step
            inputs = list(map(self.get, node.inputs, wants))
            outputs = make(self, inputs) if make else _create(node, inputs)
            for number, value, tensor in zip(node.outputs, results, outputs):
                self._keep(
                    number,
                    value,
                    tensor,
                )
        return list(map(self.get, self._plan.flat.outputs, self._plan.wanted))

    def inside(self, plan: Plan, inputs: Tensors) -> Tensors:
        """Writes a function that an operation calls, and returns its outputs."""
        return Emission(
            plan,
            self.rows,
            inputs,
            self._add_up_inside,
            self._add_up_inside,
        ).all()

    def _keep(self, number: int, value: Value, tensor: tf.Tensor) -> None:
        """Notes a form of a tensor, with the shape that is known since the step was traced."""
        if tensor.dtype not in OPAQUE:
            tensor.set_shape(shape_of_part(self._plan.flat.tensors[number], value))
        self._forms[number, value] = tensor

    def as_traced(self, flat: Flat, inputs: Tensors) -> Tensors:
        """Writes a function as it was traced, and returns its outputs."""
        tensors = dict(zip(flat.inputs, inputs))
        for node in flat.nodes:
            outputs = _create(node, [tensors[number] for number in node.inputs])
            tensors.update(zip(node.outputs, outputs))
        return [tensors[number] for number in flat.outputs]

    # --- Tensors ---------------------------------------------------------------------------------

    def get(self, number: int, want: Want) -> tf.Tensor:
        """Returns a tensor as an operation wants it."""
        if isinstance(want, Literal):
            return tf.constant(*want)
        key = number, want
        if key not in self._forms:
            self._forms[key] = self._converted(number, want)
        return self._forms[key]

    def _converted(self, number: int, want: Sizes | Value) -> tf.Tensor:
        """Returns a tensor as an operation wants it, which is made now."""
        value = self._plan.values[number]
        if isinstance(want, Sizes):
            return self.sized(
                self.get(number, SAME),
                want.rows,
                self.rows.own,
            )
        if want == SAME:  # each replica can compute it
            node = self._plan.flat.makers[number]
            outputs = _create(node, [self.get(one, SAME) for one in node.inputs])
            return outputs[node.outputs.index(number)]
        if want.is_list:
            return self._forms[number, value]
        if value == LOCAL and want == SUM:
            return self.weighted(self._forms[number, value])
        whole = self.get(number, SAME)
        if want == SUM:
            return whole if self.rows.replica == 0 else tf.zeros_like(whole)
        return tf.gather(
            whole,
            own_places(want, self.rows),
            axis=want.axis,
        )

    def weighted(self, statistic: tf.Tensor) -> tf.Tensor:
        """Returns a replica's own statistic as an addend to the mean over all rows."""
        # The statistic of no rows is NaN.
        return tf.math.multiply_no_nan(
            statistic, tf.cast(self.rows.own / self.rows.total, statistic.dtype)
        )

    @staticmethod
    def sized(sizes: tf.Tensor, value: Value, count: tf.Tensor) -> tf.Tensor:
        """Returns a vector of sizes, with that of so many rows at the place of their axis."""
        found = tf.unstack(sizes)
        found[value.axis] = tf.cast(count * (value.outer * value.inner), sizes.dtype)
        return tf.stack(found)

    # --- Collectives -----------------------------------------------------------------------------

    def _put_together(self, numbers: TensorNumbers) -> None:
        assert self._add_up, "a plan with collectives in conditions or loops"
        sent = []
        for number in numbers:
            value = self._plan.values[number]
            kept = value if value.has_rows else SUM
            sent.append(sent_part(self.get(number, kept), kept, self.rows))
        for number, total in zip(numbers, self._add_up(sent)):
            self._keep(
                number,
                SAME,
                received(total, self._plan.flat.tensors[number].dtype),
            )


def _create(node: Node, inputs: Tensors) -> Tensors:
    """Creates an operation.

    For convolutions and the like in some formats, or with groups, TensorFlow has no kernel on CPUs,
    but XLA has. So one of a function that XLA compiles is compiled, too, by itself.
    """
    write = functools.partial(create, node.operation)
    if node.is_compiled and "data_format" in attributes_of(node.operation):
        write = tf.function(write, autograph=False, jit_compile=True)
    return write(inputs)


def shape_of_part(tensor: tf.Tensor, value: Value) -> tf.TensorShape:
    """Returns the shape that a traced tensor has in each replica: the size of rows is unknown."""
    if tensor.shape.rank is None or not value.has_rows:
        return tensor.shape
    sizes = tensor.shape.as_list()
    sizes[value.axis] = None
    return tf.TensorShape(sizes)
