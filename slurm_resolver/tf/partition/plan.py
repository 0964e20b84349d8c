"""The plan: how a replica computes each operation of a graph, and what the replicas put together.

Operations are planned as soon as their inputs are. One that needs a tensor put together waits; when
all that is left waits, everything that is waited for is put together at once. So independent sums
and gathers share a collective.

For example, a step with a mean square error and a metric needs both sums, and the gradients::

    Compute(MatMul)                            ROWS of ROWS and SAME
    Compute(Mean)                              SUM of ROWS
    Compute(MatMul, of the gradient)           SUM of ROWS and ROWS
    PutTogether(loss, gradient, …)             all that waits, in one collective
    Compute(ResourceApplyAdam)                 SAME of SAME
    Compute(AssignAddVariableOp, a metric's)   SAME of SAME

A plan can begin again: if a list turns out to be needed whole, `WholeListsError` is raised, and all
lists, conditions and loops are computed whole from the beginning.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterable

import tensorflow as tf

from slurm_resolver.tf.partition.control_flow import CONTROL_FLOW
from slurm_resolver.tf.partition.effects import check_effects, drawn, is_drawn
from slurm_resolver.tf.partition.emission import Compute, Plan, PutTogether, Split
from slurm_resolver.tf.partition.exactness import TELLING
from slurm_resolver.tf.partition.inlining import Flat, Node
from slurm_resolver.tf.partition.lists import LIST_RULES, uses_lists, wholes
from slurm_resolver.tf.partition.moving import first_rows
from slurm_resolver.tf.partition.operation import Operation, Rules
from slurm_resolver.tf.partition.rules import linear
from slurm_resolver.tf.partition.sizes import SizesOf
from slurm_resolver.tf.partition.table import BY_ENTRY, DIVIDED_AGAIN, REPEATED, TABLE
from slurm_resolver.tf.partition.texts import OF_WORDS
from slurm_resolver.tf.partition.values import (
    LOCAL,
    SAME,
    SUM,
    Kind,
    NotByPartError,
    PlanError,
    Values,
    Want,
    Wants,
    list_of,
)

_CHEAP = frozenset(BY_ENTRY.split()) | REPEATED | {"ExpandDims", "Reshape", "Squeeze"}


class Planner(Plan):
    """Plans a graph.

    Args:
        flat: the graph.
        values: what its inputs are.
        whole: whether all lists, conditions and loops must be computed whole.
        sends_inside: whether tensors can be put together in conditions and loops.
        inside: whether it is in a condition or loop.
    """

    def __init__(
        self,
        flat: Flat,
        values: Values,
        whole: bool,
        sends_inside: bool,
        inside: bool = False,
    ) -> None:
        self.flat = flat
        self.inputs = values
        self.values = dict(zip(flat.inputs, values))  # in the order in which they are planned
        self.sizes = SizesOf(flat, self.values)
        self._is_whole = whole
        self.sends_inside = sends_inside
        self._inside = inside
        # Rows that have been put together, or that each replica can compute whole at little cost.
        self._known_whole: set[int] = set()
        self.steps = []
        self._done: set[Node] = set()
        self._linear: dict[Node, None] = {}  # of SUMs that are not whole, in their order

    def inner(
        self,
        flat: Flat,
        values: Values,
        alike: Iterable[tuple[int, int]],
        wanted: Wants | None = None,
        inside: bool = True,
    ) -> Plan:
        """Returns the plan of a function that an operation calls.

        Args:
            values: what its inputs are.
            alike: the numbers of tensors here, and of the function's inputs that are the same in
                each call.
            wanted: see `run`.
        """
        inner = Planner(
            flat,
            values,
            self._is_whole,
            self.sends_inside,
            inside,
        )
        for here, number in alike:
            inner.sizes.bind(number, *self.sizes.known(here))
        return inner.run(wanted)

    def run(self, wanted: Wants | None = None) -> Plan:
        """Returns the plan.

        Args:
            wanted: what the outputs should be; by default, what they are.

        Raises:
            NotByPartError: if something has to be put together inside of a condition or loop.
            WholeListsError: if the plan has to begin again.
            PlanError: if there is no plan.
        """
        waiting = self.flat.nodes
        while True:
            needed: set[int] = set()
            waiting = [node for node in waiting if not self._plan(node, needed)]
            # Outputs that are computed already go as well.
            ends = zip(self.flat.outputs, wanted or ())
            needed.update(self._missing(end for end in ends if end[0] in self.values))
            if not needed:
                break
            self._put_together(needed)
        self.outputs = [self.values[number] for number in self.flat.outputs]
        self.wanted = wanted or self.outputs
        return self

    def _plan(self, node: Node, needed: set[int]) -> bool:
        """Plans an operation if that is possible; returns whether it is.

        Args:
            needed: the tensors that are waited for; those of this operation are added.
        """
        if not (self._done.issuperset(node.after) and self.values.keys() >= {*node.inputs}):
            return False
        step = self._compute(node)
        missing = self._missing(zip(node.inputs, step.split.wants))
        needed.update(missing)
        if not missing:
            self._add(step)
        return not missing

    def _add(self, step: Compute) -> None:
        node, split, _ = step
        self.steps.append(step)
        self._done.add(node)
        self.values.update(zip(node.outputs, split.results))
        if not split.make and SUM in split.wants:
            self._linear[node] = None
        if node.kind in _CHEAP and all(map(self._is_known_whole, node.inputs)):
            self._known_whole.update(node.outputs)

    def _is_known_whole(self, number: int) -> bool:
        """Whether a replica can have the whole tensor without another collective."""
        return self.values[number] == SAME or number in self._known_whole

    def _missing(self, wants: Iterable[tuple[int, Want]]) -> list[int]:
        """Returns the tensors that a replica cannot have as wanted without a collective."""
        return [number for number, want in wants if not self._has(number, want)]

    def _has(self, number: int, want: Want) -> bool:
        value = self.values[number]
        return (
            value == want
            or (value.is_list and want != SAME)  # it becomes another list
            or self._is_known_whole(number)
        )

    # --- One operation ---------------------------------------------------------------------------

    def _compute(self, node: Node) -> Compute:
        op = Operation(
            node,
            [self.values[number] for number in node.inputs],
            self.sizes,
        )
        try:
            return Compute(node, self._split(op))
        except NotByPartError as error:
            return Compute(
                node,
                self._whole(op),
                str(error),
            )

    def _split(self, op: Operation) -> Split:
        """Returns how a replica computes an operation on what it has."""
        if is_drawn(op.traced):
            return drawn(op)
        if any(value.kind is Kind.WORDS for value in op.raw):
            return _by_rule(op, OF_WORDS)
        calls = CONTROL_FLOW.get(op.kind)
        if not calls:
            check_effects(op)
        if self._is_whole and (calls or uses_lists(op)):
            raise NotByPartError("a list is needed whole")
        if calls:
            return calls(
                self,
                op,
                op.raw,
            )
        return _by_rule(op, LIST_RULES) if uses_lists(op) else self._split_tensors(op)

    def _split_tensors(self, op: Operation) -> Split:
        # The shape of a sum is known, without putting it together.
        is_divided = op.divided or op.kind in TELLING
        found = linear(op) or (_by_rule(op, TABLE) if is_divided else self._same(op))
        # A replica's own statistics stay so.
        return found._replace(
            wants=[
                LOCAL if value == LOCAL and want == SAME and found.results else want
                for value, want in zip(op.raw, found.wants)
            ]
        )

    def _same(self, op: Operation) -> Split:
        """Returns how an operation is computed whose inputs are all whole, or own statistics."""
        if LOCAL in op.raw:
            if op.kind not in TABLE:
                raise NotByPartError("a replica's own statistics")
            return op.split(LOCAL)
        if not self._inside and op.kind in REPEATED | DIVIDED_AGAIN:
            with contextlib.suppress(NotByPartError):
                return TABLE[op.kind](op if op.kind in REPEATED else self._divided_again(op))
        return op.split(SAME)

    def _divided_again(self, op: Operation) -> Operation:
        """Returns a product as if its first input had rows, such as a reversed batch."""
        value = first_rows(*op.shape())
        others = op.shape(1)
        if value.axis or others[0] != others[1] or op.attribute("transpose_a"):
            raise NotByPartError("no rows, or a sum over rows")
        return Operation(
            op.node,
            (value, *op.values[1:]),
            self.sizes,
        )

    def _whole(self, op: Operation) -> Split:
        """Returns how an operation is computed whole."""
        if op.kind in CONTROL_FLOW:
            return CONTROL_FLOW[op.kind](
                self,
                op,
                wholes(op),
            )
        return op.split(
            [list_of(SAME) if one.dtype == tf.variant else SAME for one in op.traced.outputs],
            *wholes(op),
        )

    # --- Collectives -----------------------------------------------------------------------------

    def _put_together(self, needed: set[int]) -> None:
        """Adds the step that puts together what is waited for."""
        if self._inside and not self.sends_inside:
            raise NotByPartError("rows are put together in a condition or loop")
        sources = set(map(self._source, needed))
        # What is computed first can be sent first: the gradients of the last layers.
        sent = [number for number in self.values if number in sources]
        for number in sent:
            self._check_type(number)
            if self.values[number] == SUM:
                self.values[number] = SAME
        self._known_whole.update(sent)
        self.steps.append(PutTogether(sent))
        self._note_whole_sums()

    def _check_type(self, number: int) -> None:
        """Raises PlanError for a tensor that cannot be put together."""
        tensor = self.flat.tensors[number]
        value = self.values[number]
        if value.kind is Kind.WORDS:
            raise PlanError(
                "the words of all rows are needed; those of each row are enough only for a table "
                "of a fixed width, such as TextVectorization's with an output_sequence_length"
            )
        if tensor.dtype in (tf.resource, tf.string, tf.variant) or (
            value == LOCAL and not tensor.dtype.is_floating
        ):
            raise PlanError(f"all rows of {tensor.name} are needed, a {tensor.dtype.name}")

    def _note_whole_sums(self) -> None:
        """Notes what is computed of nothing but whole tensors now."""
        for node in [*self._linear]:
            if all(self.values[one] == SAME for one in node.inputs):
                self.values.update(dict.fromkeys(node.outputs, SAME))
                del self._linear[node]

    def _source(self, number: int) -> int:
        """Returns the SUM of which a SUM is computed, and which is sent in its place.

        Then all that is computed of it is whole. So a gradient is sent once, and not also as it
        enters Adam's moving averages.
        """
        node = self.flat.makers.get(number)
        if node not in self._linear:
            return number
        first, *others = (one for one in node.inputs if self.values[one] != SAME)
        given, result = (self.flat.tensors[one] for one in (first, number))
        if (
            others
            or self.values[first] != SUM
            or given.dtype != result.dtype
            or given.shape.num_elements() != result.shape.num_elements()
        ):
            return number
        return self._source(first)


def _by_rule(op: Operation, table: Rules) -> Split:
    """Returns how a replica computes an operation by its rule in a table."""
    if op.kind not in table:
        raise NotByPartError("no rule")
    return table[op.kind](op)
