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

A plan can begin again: if a list turns out to be needed whole, `WholeListsError` says which
operations must be computed whole from the beginning.
"""

from __future__ import annotations

import dataclasses
import heapq
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Callable, Union

import tensorflow as tf

from slurm_resolver.tf.partition.effects import check_effects, drawn, is_drawn
from slurm_resolver.tf.partition.inlining import Flat, Node
from slurm_resolver.tf.partition.lists import LIST_RULES
from slurm_resolver.tf.partition.operation import Operation
from slurm_resolver.tf.partition.rules import linear
from slurm_resolver.tf.partition.sizes import COUNTS, SizesOf, is_count
from slurm_resolver.tf.partition.table import BY_ENTRY, DIVIDED_AGAIN, OF_SHAPE, REPEATED, TABLE
from slurm_resolver.tf.partition.values import (
    LOCAL,
    SAME,
    SUM,
    Kind,
    Literal,
    NotByPartError,
    PlanError,
    Split,
    Value,
    Want,
    list_of,
    rows,
)

_CHEAP = frozenset(BY_ENTRY.split()) | REPEATED | {"ExpandDims", "Reshape", "Squeeze"}

_OF_LISTS = ("Empty", "Optional", "TensorList")


@dataclasses.dataclass(eq=False)
class Compute:
    """A step of a plan: an operation.

    Attributes:
        reason: why it is computed whole; None if it is divided, or has no rows.
    """

    node: Node
    split: Split
    reason: str | None = None


@dataclasses.dataclass(eq=False)
class PutTogether:
    """A step of a plan: what the replicas have of some tensors is put together, at once."""

    numbers: tuple[int, ...]


Step = Union[Compute, PutTogether]


@dataclasses.dataclass(eq=False)
class Plan:
    """How a replica computes a graph.

    Attributes:
        flat: the graph.
        inputs: what a replica is given of the graph's inputs.
        steps: in their order.
        values: what is known of each tensor in the end, by number.
        outputs: what the graph's outputs are.
        wanted: what they are converted into.
    """

    flat: Flat
    inputs: dict[int, Value]
    steps: list[Step]
    values: dict[int, Value]
    outputs: list[Value]
    wanted: list[Want]

    @property
    def levels(self) -> list[tuple[int, ...]]:
        """The tensors that are put together, for each collective."""
        return [step.numbers for step in self.steps if isinstance(step, PutTogether)]

    @property
    def whole(self) -> dict[str, str]:
        """Why operations are computed whole, by name."""
        found = {}
        for step in self.steps:
            if isinstance(step, Compute) and step.reason:
                found[step.node.operation.name] = step.reason
        return found


class WholeListsError(Exception):
    """Raised if a plan has to begin again, with some operations computed whole.

    Attributes:
        nodes: these operations.
    """

    def __init__(self, nodes: Iterable[Node]) -> None:
        super().__init__()
        self.nodes = set(nodes)


class Planner:
    """Plans a graph.

    Args:
        flat: the graph.
        values: what its inputs are.
        control_flow: the rules of conditions and loops, by operation. They get the planner, the
            operation, and whether it has to be computed whole.
        whole: operations that must be computed whole.
        inside: whether it is in a condition or loop.
        sends_inside: whether tensors can be put together in conditions and loops.
    """

    def __init__(
        self,
        flat: Flat,
        values: Sequence[Value],
        control_flow: Mapping[str, Callable[[Planner, Operation, bool], Split]],
        whole: Collection[Node] = (),
        inside: bool = False,
        sends_inside: bool = False,
    ) -> None:
        self.flat = flat
        self._inputs = dict(zip(flat.inputs, values))
        self.values: dict[int, Value] = {**self._inputs}
        self.sizes = SizesOf(flat, self.values.get)
        self.control_flow = control_flow
        self.whole = whole
        self.inside = inside
        self.sends_inside = sends_inside
        self._together: set[int] = set()  # rows that have been put together
        # Rows that each replica can also compute whole for itself, at little cost.
        self._repeated: set[int] = set()
        self._steps: list[Step] = []
        self._order: dict[int, int] = dict.fromkeys(flat.inputs, 0)  # of tensors, as planned
        self._done: set[Node] = set()
        self._linear: dict[Node, None] = {}  # of SUMs that are not whole, in their order
        self._ready: list[int] = []  # the places of operations with planned inputs, as a heap
        self._followers: dict[Node, list[int]] = {}
        self._missing: list[int] = []  # how many operations are planned before, by place
        self._computed: dict[tuple[Node, tuple[Value, ...]], Compute] = {}

    def run(self, wanted: Sequence[Want] | None = None) -> Plan:
        """Returns the plan.

        Args:
            wanted: what the outputs should be; by default, what they are.

        Raises:
            NotByPartError: if something has to be put together inside of a condition or loop.
            WholeListsError: if the plan has to begin again.
            PlanError: if there is no plan.
        """
        ends = dict(zip(self.flat.outputs, wanted or ()))
        self._begin()
        while len(self._done) < len(self.flat.nodes):
            needed: dict[int, None] = {}
            waiting = []
            while self._ready:
                place = heapq.heappop(self._ready)
                if not self._plan(self.flat.nodes[place], needed):
                    waiting.append(place)
            if needed:
                self._put_together(needed, ends)
            elif len(self._done) < len(self.flat.nodes):
                raise PlanError("operations wait for each other")
            self._ready = sorted(waiting)
        if not all(self._is_available(*end) for end in ends.items()):
            self._put_together({}, ends)
        outputs = [self.values[number] for number in self.flat.outputs]
        return Plan(
            self.flat,
            self._inputs,
            self._steps,
            self.values,
            outputs,
            list(wanted or outputs),
        )

    def _begin(self) -> None:
        """Notes for what each operation waits."""
        for place, node in enumerate(self.flat.nodes):
            makers = {self.flat.makers[one] for one in node.inputs if one in self.flat.makers}
            before = makers.union(node.after)
            self._missing.append(len(before))
            for one in before:
                self._followers.setdefault(one, []).append(place)
            if not before:
                self._ready.append(place)

    def _plan(self, node: Node, needed: dict[int, None]) -> bool:
        """Plans an operation if that is possible; returns whether it is.

        Args:
            needed: the tensors that are waited for; those of this operation are added.
        """
        step = self._compute(node)
        missing = [
            number
            for number, want in zip(node.inputs, step.split.wants)
            if not self._is_available(number, want)
        ]
        if missing:
            needed.update(dict.fromkeys(missing))
            return False
        self._steps.append(step)
        self._done.add(node)
        if not step.split.make and any(want is SUM for want in step.split.wants):
            self._linear[node] = None
        for place in self._followers.get(node, ()):
            self._missing[place] -= 1
            if not self._missing[place]:
                heapq.heappush(self._ready, place)
        self._order.update(dict.fromkeys(node.outputs, len(self._steps)))
        self.values.update(zip(node.outputs, step.split.results))
        if node.operation.type in _CHEAP and all(self._is_known_whole(one) for one in node.inputs):
            self._repeated.update(node.outputs)
        return True

    def _is_known_whole(self, number: int) -> bool:
        """Whether a replica can have the whole tensor without another collective."""
        return self.values[number] == SAME or number in self._repeated or number in self._together

    def _is_available(self, number: int, want: Want) -> bool:
        """Whether a replica can have a tensor as it is wanted without a collective."""
        value = self.values[number]
        if isinstance(want, Literal):
            return True
        if isinstance(want, Value) and want.is_list:
            return self._is_list_of(
                number,
                value,
                want,
            )
        return value == want or self._is_known_whole(number)

    def _is_list_of(
        self,
        number: int,
        value: Value,
        want: Value,
    ) -> bool:
        """Whether a list has the elements that are wanted, or none."""
        given = value.element
        wanted = want.element
        is_open = given is None and (wanted is None or wanted.kind is not Kind.OWN)
        if is_open or wanted is None or given == wanted:
            return True
        if given is None:
            raise WholeListsError(self.makers_of(number))
        if given._replace(numbers=None) == wanted._replace(numbers=None):
            return True
        raise WholeListsError(self.makers_of(number))

    # --- One operation ---------------------------------------------------------------------------

    def _compute(self, node: Node) -> Compute:
        """Returns how an operation is computed."""
        raw = tuple(self.values[number] for number in node.inputs)
        key = node, raw
        if key not in self._computed:  # one that waits is asked for again and again
            self._computed[key] = self._compute_anew(Operation(node, raw, self.sizes))
        return self._computed[key]

    def _compute_anew(self, op: Operation) -> Compute:
        check_effects(op, self.control_flow)
        try:
            if op.node in self.whole:
                raise NotByPartError("a list of it is needed whole")
            return Compute(op.node, self._split(op))
        except NotByPartError as error:
            return self._whole(op, str(error))

    def _split(self, op: Operation) -> Split:
        """Returns how a replica computes an operation on what it has."""
        kind = op.kind
        if kind in self.control_flow:
            return self.control_flow[kind](
                self,
                op,
                False,
            )
        if is_drawn(op.node.operation):
            return drawn(op)
        if kind in LIST_RULES and (kind.startswith(_OF_LISTS) or has_lists(op)):
            return LIST_RULES[kind](op)
        if LOCAL in op.raw and kind not in OF_SHAPE:
            return self._of_own(op)
        if SUM in op.raw and kind not in OF_SHAPE:
            found = linear(op)
            if found is not None:
                return found
        if kind == "Assert":
            return Split((), (SAME, *op.values[1:]))
        if kind in OF_SHAPE and (SUM in op.raw or LOCAL in op.raw):
            return TABLE[kind](op)
        if not op.divided:
            return self._same(op)
        if kind not in TABLE:
            raise NotByPartError("no rule")
        return TABLE[kind](op)

    def _of_own(self, op: Operation) -> Split:
        """Returns how an operation of a replica's own statistics is computed."""
        found = linear(op) if SUM in op.raw else None
        if found is None:
            if op.kind not in TABLE:
                raise NotByPartError("a replica's own statistics")
            found = TABLE[op.kind](op) if op.divided else op.split(LOCAL)
        wants = [
            LOCAL if value == LOCAL and want == SAME else want
            for value, want in zip(op.raw, found.wants)
        ]
        return found._replace(wants=tuple(wants))

    def _same(self, op: Operation) -> Split:
        """Returns how an operation is computed whose inputs are all whole."""
        if self.inside or op.kind not in REPEATED | DIVIDED_AGAIN:
            return op.split(SAME)
        try:
            return TABLE[op.kind](op if op.kind in REPEATED else self._divided_again(op))
        except NotByPartError:
            return op.split(SAME)

    def _divided_again(self, op: Operation) -> Operation:
        """Returns a product as if its first input had rows, such as a reversed batch."""
        first = self.sizes.size(op.node.inputs[0], 0) if op.rank() else None
        outer = first[0] // COUNTS[0] if first else 0
        others = op.shape(1)
        has_rows = outer and is_count(first, outer, inner=1)
        if not has_rows or others[0] != others[1]:
            raise NotByPartError("no rows")
        if op.kind == "MatMul" and op.attribute("transpose_a"):
            raise NotByPartError("a sum over rows")
        return Operation(
            op.node,
            (rows(0, outer), *op.values[1:]),
            self.sizes,
        )

    def _whole(self, op: Operation, reason: str) -> Compute:
        """Returns how an operation is computed whole."""
        if op.kind in self.control_flow:
            return Compute(op.node, self._whole_call(op), reason)
        wholes = self.wholes(op)
        if op.kind in LIST_RULES and has_lists(op):
            whole = Operation(
                op.node,
                wholes,
                self.sizes,
            )
            return Compute(
                op.node,
                LIST_RULES[op.kind](whole),
                reason,
            )
        lists = [output.dtype == tf.variant for output in op.node.operation.outputs]
        results = tuple(list_of(SAME) if is_list else SAME for is_list in lists)
        return Compute(
            op.node,
            Split(results, tuple(wholes)),
            reason,
        )

    def _whole_call(self, op: Operation) -> Split:
        """Returns how a condition or loop is computed whole."""
        try:
            return self.control_flow[op.kind](self, op, True)
        except NotByPartError as error:
            if self.inside:
                raise
            raise PlanError(f"{op.kind} {op.node.operation.name}: {error}") from None

    def wholes(self, op: Operation) -> list[Value]:
        """Returns what the inputs of an operation are if they are whole.

        Raises:
            WholeListsError: if one is a list of parts.
        """
        found = []
        for number, value in zip(op.node.inputs, op.raw):
            if value.is_list and value.element and value.element.kind is not Kind.SAME:
                raise WholeListsError({op.node, *self.makers_of(number)})
            found.append(value if value.is_list else SAME)
        return found

    def makers_of(self, number: int) -> set[Node]:
        """Returns the operations that have made a list, or put elements into it."""
        found: set[Node] = set()
        waiting = [number]
        while waiting:
            node = self.flat.makers.get(waiting.pop())
            if node is not None and node not in found:
                found.add(node)
                waiting += [one for one in node.inputs if self.values[one].is_list]
        return found

    # --- Collectives -----------------------------------------------------------------------------

    def _put_together(
        self,
        needed: dict[int, None],
        ends: Mapping[int, Want],
    ) -> None:
        """Adds the step that puts together what is waited for.

        Args:
            needed: by operations.
            ends: what is wanted of outputs; those that are computed already go as well.
        """
        if self.inside and not self.sends_inside:
            raise NotByPartError("rows are put together in a condition or loop")
        for number, want in ends.items():
            if number in self.values and not self._is_available(number, want):
                needed[number] = None
        sent = dict.fromkeys(map(self._source, needed))
        for number in sent:
            self._check_sendable(number)
        # What is computed first can be sent first: the gradients of the last layers.
        self._steps.append(PutTogether(tuple(sorted(sent, key=self._order.__getitem__))))
        for number in sent:
            if self.values[number] == SUM:
                self.values[number] = SAME
            else:
                self._together.add(number)
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
        given = self.flat.tensors[first]
        result = self.flat.tensors[number]
        is_alike = given.dtype == result.dtype
        is_alike &= given.shape.num_elements() == result.shape.num_elements()
        if others or self.values[first] != SUM or not is_alike:
            return number
        return self._source(first)

    def _check_sendable(self, number: int) -> None:
        """Raises PlanError for a tensor that the replicas cannot add up."""
        tensor = self.flat.tensors[number]
        is_number = tensor.dtype.is_floating or tensor.dtype.is_integer or tensor.dtype.is_complex
        is_statistic = self.values[number] == LOCAL
        if is_statistic and not tensor.dtype.is_floating:
            raise PlanError(f"{tensor.name} is a statistic of a replica that has no mean")
        if not is_number and tensor.dtype != tf.bool:
            raise PlanError(f"all rows of {tensor.name} are needed, a {tensor.dtype.name}")


def has_lists(op: Operation) -> bool:
    """Whether an input is a TensorList."""
    return any(value.is_list for value in op.raw)
