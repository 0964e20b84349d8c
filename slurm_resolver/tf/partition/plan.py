"""The plan: how a replica computes each operation of a graph, and what the replicas put together.

Operations are planned as soon as their inputs are. One that needs a tensor put together waits; when
all that is left waits, everything that is waited for is put together at once. So independent sums
and gathers share a collective.

For example, a step with a mean square error and a metric needs both sums, and the gradients::

    Split(MatMul)                              ROWS of ROWS and SAME
    Split(Mean)                                SUM of ROWS
    Split(MatMul, of the gradient)             SUM of ROWS and ROWS
    PutTogether(loss, gradient, …)             all that waits, in one collective
    Split(ResourceApplyAdam)                   SAME of SAME
    Split(AssignAddVariableOp, a metric's)     SAME of SAME

A plan can begin again: if a list turns out to be needed whole, `WholeListsError` is raised, and all
lists, conditions and loops are computed whole from the beginning.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterable

import tensorflow as tf

from slurm_resolver.tf.partition.control_flow import CONTROL_FLOW
from slurm_resolver.tf.partition.effects import calls, drawn, has_unknown_effect, is_drawn
from slurm_resolver.tf.partition.emission import Plan, PutTogether, Split
from slurm_resolver.tf.partition.exactness import TELLING
from slurm_resolver.tf.partition.inlining import Flat, Node
from slurm_resolver.tf.partition.lists import LIST_RULES, uses_lists, wholes
from slurm_resolver.tf.partition.moving import first_rows
from slurm_resolver.tf.partition.operation import Operation, Rules
from slurm_resolver.tf.partition.rules import linear
from slurm_resolver.tf.partition.scratch import Scratch
from slurm_resolver.tf.partition.sizes import SizesOf
from slurm_resolver.tf.partition.table import DIVIDED_AGAIN, REPEATED, TABLE
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


class Planner(Plan):
    """Plans a graph.

    Args:
        flat: the graph.
        inputs: what a replica is given of the graph's inputs.
        scratch: where sizes are inferred.
        whole: whether all lists, conditions and loops must be computed whole.
        sends_inside: whether tensors can be put together in conditions and loops.
        inside: whether it is in a condition or loop.
    """

    def __init__(
        self,
        flat: Flat,
        inputs: Values,
        scratch: Scratch,
        whole: bool,
        sends_inside: bool,
        inside: bool = False,
    ) -> None:
        self.flat = flat
        self.inputs = inputs
        self.values = dict(zip(flat.inputs, inputs))  # in the order in which they are planned
        self.sizes = SizesOf(flat, self.values, scratch)
        self.steps = []
        self._is_whole = whole
        self._sends_inside = sends_inside
        self._inside = inside
        # Rows that have been put together, or are one entry for all of them.
        self._known_whole: set[int] = set()
        self._done: set[Node] = set()
        self._linear: list[Node] = []  # computed of SUMs

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
            self.sizes.scratch,
            self._is_whole,
            self._sends_inside,
            inside,
        )
        for here, number in alike:
            inner.sizes.bind(number, *self.sizes.known(here))
        return inner.run(wanted)

    def run(self, wanted: Wants | None = None) -> Plan:
        """Plans the graph, and returns the plan.

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
        missing = self._missing(zip(node.inputs, step.wants))
        if missing:
            needed.update(missing)
            return False
        self.steps.append(step)
        self._done.add(node)
        self.values.update(zip(node.outputs, step.results))
        if not step.make and SUM in step.wants:
            self._linear.append(node)
        if node.kind in REPEATED and all(map(self._is_known_whole, node.inputs)):
            self._known_whole.update(node.outputs)
        return True

    def _is_known_whole(self, number: int) -> bool:
        """Whether a replica can have the whole tensor without another collective."""
        return self.values[number] == SAME or number in self._known_whole

    def _missing(self, wants: Iterable[tuple[int, Want]]) -> list[int]:
        """Returns the tensors that a replica cannot have as wanted without a collective."""
        return [
            number
            for number, want in wants
            if self.values[number] != want
            and not self._is_known_whole(number)
            and not (self.values[number].is_list and want != SAME)  # it becomes another list
        ]

    # --- One operation ---------------------------------------------------------------------------

    def _compute(self, node: Node) -> Split:
        op = Operation(
            node,
            [self.values[number] for number in node.inputs],
            self.sizes,
        )
        try:
            return self._split(op)
        except NotByPartError as error:
            reason = str(error)
        given = wholes(op)
        control = CONTROL_FLOW.get(op.kind)
        if control:
            found = control(self, op, given)
        else:
            lists = (one.dtype == tf.variant for one in op.traced.outputs)
            found = op.split([list_of(SAME) if one else SAME for one in lists], *given)
        return found._replace(reason=reason)

    def _split(self, op: Operation) -> Split:
        """Returns how a replica computes an operation on what it has."""
        if is_drawn(op.traced):
            return drawn(op)
        if any(value.kind is Kind.WORDS for value in op.raw):
            return _by_rule(op, OF_WORDS)
        control = CONTROL_FLOW.get(op.kind)
        if not control and (calls(op.traced) or has_unknown_effect(op.traced)):
            raise PlanError(f"{op.kind} may do something else in each worker")
        has_lists = uses_lists(op)
        if self._is_whole and (control or has_lists):
            raise NotByPartError("a list is needed whole")
        if control:
            return control(
                self,
                op,
                op.raw,
            )
        if has_lists:
            return _by_rule(op, LIST_RULES)
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
        with contextlib.suppress(NotByPartError):
            if op.kind in REPEATED and not self._inside:
                return TABLE[op.kind](op)
            if op.kind in DIVIDED_AGAIN and not self._inside:
                # As if the first input had rows, such as a reversed batch.
                op.values[0] = first_rows(op.shape())
                has_rows = any(size and size[0] != size[1] for size in op.shape(1))
                if not (has_rows or op.values[0].axis or op.attribute("transpose_a")):
                    return TABLE[op.kind](op)
        return op.split(SAME)

    # --- Collectives -----------------------------------------------------------------------------

    def _put_together(self, needed: set[int]) -> None:
        """Adds the step that puts together what is waited for."""
        if self._inside and not self._sends_inside:
            raise NotByPartError("rows are put together in a condition or loop")
        sources = set(map(self._source, needed))
        # What is computed first can be sent first: the gradients of the last layers.
        sent = [number for number in self.values if number in sources]
        for number in sent:
            tensor = self.flat.tensors[number]
            value = self.values[number]
            if value.kind is Kind.WORDS:
                raise PlanError(
                    "the words of all rows are needed; those of each row are enough only for a "
                    "table of a fixed width, such as TextVectorization's with an "
                    "output_sequence_length. Or split the texts in a map of the dataset"
                )
            if tensor.dtype in (tf.resource, tf.string, tf.variant) or (
                value == LOCAL and not tensor.dtype.is_floating
            ):
                raise PlanError(f"all rows of {tensor.name} are needed, a {tensor.dtype.name}")
            if value == SUM:
                self.values[number] = SAME
        self._known_whole.update(sent)
        self.steps.append(PutTogether(sent))
        for node in self._linear:
            if all(map(self._is_known_whole, node.inputs)):
                self.values.update(dict.fromkeys(node.outputs, SAME))

    def _source(self, number: int) -> int:
        """Returns the SUM of which a SUM is computed, and which is sent in its place.

        Then all that is computed of it is whole. So a gradient is sent once, and not also as it
        enters Adam's moving averages.
        """
        node = self.flat.makers.get(number)
        if node not in self._linear:
            return number
        first, *others = (one for one in node.inputs if self.values[one] != SAME)
        tensors = (self.flat.tensors[one] for one in (first, number))
        sizes = {(tensor.dtype, tensor.shape.num_elements()) for tensor in tensors}
        is_other = others or self.values[first] != SUM or len(sizes) > 1
        return number if is_other else self._source(first)


def _by_rule(op: Operation, table: Rules) -> Split:
    """Returns how a replica computes an operation by its rule in a table."""
    if op.kind not in table:
        raise NotByPartError("no rule")
    return table[op.kind](op)
