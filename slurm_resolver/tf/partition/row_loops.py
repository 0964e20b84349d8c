"""Loops that compute each row by itself, such as those of `tf.map_fn` and of its gradient.

One process takes a round for each of the N rows. A replica takes one for each of its own rows, with
the same operations, if a round uses nothing of another round. For that, each variable of the loop
is one of these::

    variable                        in each round
    counter                         counts the rounds from 0; says which element of a list is used
    list                            its element for the row is read, or written
    stack                           an element is pushed, or popped, in each round
    total                           a number of the row is added, and nothing else is done with it
    any other                       stays as it is, and is whole

A loop that pops takes the rows from the last one to the first. So what it pops says which row it
is, and not its counter.
"""

from __future__ import annotations

import numpy as np
import tensorflow as tf

from slurm_resolver.tf.partition.collectives import OwnRows
from slurm_resolver.tf.partition.effects import calls, is_drawn
from slurm_resolver.tf.partition.emission import Emission, Split
from slurm_resolver.tf.partition.inlining import Flat, Node
from slurm_resolver.tf.partition.operation import Operation
from slurm_resolver.tf.partition.values import (
    COUNTS,
    OWN,
    SAME,
    SUM,
    Kind,
    NotByPartError,
    Tensors,
    Value,
    Values,
    list_of,
)

# What a tensor of a round is, besides OWN (of this row, or the same in all rounds), lists, and the
# SUM of a total.
PLACE = Value(Kind.PLACE)
COUNTER = Value(Kind.PLACE, axis=1)  # no number of a row: in a loop that pops, or after a round
LENGTH = Value(Kind.PLACE, axis=2)  # of a list: the number of all rows, or of the replica's
_BY_ROW = list_of(OWN)
_OPEN = list_of(None)
_POPPED = list_of(SAME)
_POP = "TensorListPopBack"
_PUSH = "TensorListPushBack"
# Lists with an element for each row of a replica.
STACKS = {list_of(one) for one in (OWN, PLACE, LENGTH)}
# What an operation with lists or counters returns, by what it gets.
_RETURNED: dict[tuple[str | Value | None, ...], list[Value]] = {
    ("AddV2", PLACE, OWN): [COUNTER],
    ("AddV2", COUNTER, OWN): [COUNTER],
    ("TensorListElementShape", _BY_ROW): [OWN],
    ("TensorListGetItem", _BY_ROW, PLACE, OWN): [OWN],
    ("TensorListLength", _BY_ROW): [LENGTH],
    ("TensorListReserve", OWN, LENGTH): [_BY_ROW],
    ("TensorListSetItem", _BY_ROW, PLACE, OWN): [_BY_ROW],
    ("TensorListSetItem", _OPEN, PLACE, OWN): [_BY_ROW],
    ("ZerosLike", _BY_ROW): [_BY_ROW],
}
for _stack in STACKS:
    _RETURNED[_PUSH, _OPEN, _stack.element] = [_stack]
    _RETURNED[_POP, _stack, OWN] = [_POPPED, _stack.element or OWN]
_ADDING = ("Add", "AddN", "AddV2")
_SUMS = ({_BY_ROW}, {SUM, OWN})


class RowLoop:
    """A loop whose rounds are those of the rows.

    The number of an input of its functions is its place among the loop's variables.

    Args:
        op: the loop.

    Raises:
        NotByPartError: if it is another loop.
    """

    def __init__(self, op: Operation) -> None:
        self._op = op
        self._body = body = op.function("body")
        self._results = list(map(self._origin, body.outputs))
        self._kept = [place for place in body.inputs if self._results[place] == place]
        self._counters = list(filter(self._counts, body.inputs))
        self._check_rounds(op.function("cond"))
        self._kinds = {node.kind for node in body.nodes}
        # What a tensor of a round is, and which list or total.
        self._known = {place: self._in_round(place) for place in body.inputs}
        self._variables = {place: place for place in body.inputs if _is_changed(self._known[place])}

    def _in_round(self, place: int) -> Value:
        """Returns what a variable is in each round."""
        value = self._op.raw[place]
        if place in self._counters:
            return COUNTER if _POP in self._kinds else PLACE
        if value.is_list:
            return value
        return OWN if place in self._kept else SUM

    def _origin(self, number: int) -> int:
        """Returns the tensor of which another one is a copy."""
        kind, inputs = self._body.made(number)
        return self._origin(inputs[0]) if kind == "Identity" else number

    def _counts(self, place: int) -> bool:
        """Whether a variable counts the rounds, from 0."""
        number = self._results[place]
        kind, inputs = self._body.made(number)
        if kind != "AddV2" or self._origin(inputs[0]) != place:
            return False
        step = tf.get_static_value(self._body.tensors[number].op.inputs[1])
        return np.array_equal(step, 1) and np.array_equal(self._op.numbers(place), (0, 0))

    def _check_rounds(self, test: Flat) -> None:
        """Raises NotByPartError unless a round follows if there is another row."""
        tests: set[int] = set()
        for node in test.nodes:
            if (
                node.kind in ("Identity", "LogicalAnd") and tests.issuperset(node.inputs)
            ) or self._counts_to_n(node):
                tests.update(node.outputs)
        if not tests.issuperset(test.outputs):
            raise NotByPartError("a loop with another number of rounds")

    def _counts_to_n(self, node: Node) -> bool:
        """Whether an operation compares a counter with N."""
        if node.kind != "Less":
            return False
        counter, end = node.inputs
        return (
            counter in self._counters
            and end in self._kept
            and self._is_n(self._op.node.inputs[end])
        )

    def _is_n(self, number: int) -> bool:
        """Whether a tensor outside the loop is N."""
        return np.array_equal(self._op.sizes.numbers(number) or (), COUNTS)

    def split(self) -> Split:
        """Returns how a replica computes the loop."""
        if self._kinds.issuperset((_POP, _PUSH)):
            raise NotByPartError("a loop that pushes rows as it pops others")
        for node in self._body.nodes:
            self._plan(node)
        places = self._body.inputs
        return self._op.split(
            list(map(self._result, places)),
            *[self._known[place] if place in self._variables else SAME for place in places],
            make=self._make,
        )

    def _plan(self, node: Node) -> None:
        """Notes what the results of an operation are in a round."""
        values = [self._known[number] for number in node.inputs]
        variables = [self._variables[one] for one in node.inputs if one in self._variables]
        for number, value in zip(node.outputs, _results(node, values, len(variables))):
            self._known[number] = value
            if variables and node.kind != "ZerosLike" and _is_changed(value):
                self._variables[number] = variables[0]

    def _result(self, place: int) -> Value:
        """Returns what is known of a variable after the loop.

        A counter is N then, and a stack that the rounds have popped is empty.

        Raises:
            NotByPartError: if a round takes the variable from the one before it.
        """
        given = self._op.raw[place]
        number = self._results[place]
        if place in self._counters:
            self._op.sizes.bind(
                self._op.node.outputs[place],
                None,
                COUNTS,
            )
            return SAME
        if place in self._kept:
            return given if given.is_list else SAME
        if self._variables.get(number) != place:
            raise NotByPartError("a round uses another one")
        if given == _OPEN and not self._is_for_rows(self._op.node.inputs[place]):
            raise NotByPartError("a list of another length")
        return self._known[number]

    def _is_for_rows(self, number: int) -> bool:
        """Whether a list is new: a stack, or one with a place for each row."""
        kind, inputs = self._op.sizes.flat.made(number)
        if kind == "TensorListReserve":
            return self._is_n(inputs[1])
        return kind == "EmptyTensorList"

    def _make(self, emission: Emission, inputs: Tensors) -> Tensors:
        """Writes the loop with a round for each of the replica's rows."""
        counter = self._counters[0]
        results = tf.while_loop(
            lambda *state: state[counter] < tf.cast(emission.rows.own, state[counter].dtype),
            lambda *state: emission.as_traced(self._body, state),
            inputs,
            parallel_iterations=self._op.attribute("parallel_iterations"),
        )
        return [self._after(*one, emission.rows) for one in enumerate(results)]

    def _after(self, place: int, tensor: tf.Tensor, rows: OwnRows) -> tf.Tensor:
        """Returns a variable after the loop.

        A list that was made for N elements gets as many as the replica has rows.
        """
        if place in self._counters:
            return tf.cast(rows.total, tensor.dtype)
        if tensor.dtype == tf.variant and place not in self._kept:
            return tf.raw_ops.TensorListResize(input_handle=tensor, size=rows.own)
        return tensor


def _is_changed(value: Value) -> bool:
    """Whether rounds change a variable, a list or a total."""
    return value.is_list or value == SUM


def _results(node: Node, values: Values, variables: int) -> Values:
    """Returns what the results of an operation are in a round.

    Args:
        values: what its inputs are.
        variables: how many of these are lists and totals.

    Raises:
        NotByPartError: if it uses more than this row, or the number of the row, which is another
            one in one process.
    """
    if node.kind == "Identity":
        return values
    if node.kind in _ADDING and variables < 2 and set(values) in _SUMS:
        # What has nothing of other rows is added to a variable.
        return [SUM if SUM in values else _BY_ROW]
    return _RETURNED.get((node.kind, *values)) or _of_own_row(node, values)


def _of_own_row(node: Node, values: Values) -> Values:
    operation = node.operation
    has_effect = operation.op_def.is_stateful and node.kind != "ReadVariableOp"
    if has_effect or calls(operation) or is_drawn(operation) or not set(values) <= {OWN}:
        raise NotByPartError("a loop that uses more than a row in a round")
    return [OWN] * len(node.outputs)
