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

from slurm_resolver.tf.partition.effects import is_drawn
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
    Value,
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
# What an operation with lists returns, by what it gets.
_OF_LISTS: dict[tuple[str | Value | None, ...], list[Value]] = {
    ("TensorListElementShape", _BY_ROW): [OWN],
    ("TensorListGetItem", _BY_ROW, PLACE, OWN): [OWN],
    ("TensorListLength", _BY_ROW): [LENGTH],
    ("TensorListReserve", OWN, LENGTH): [_BY_ROW],
    ("TensorListSetItem", _BY_ROW, PLACE, OWN): [_BY_ROW],
    ("TensorListSetItem", _OPEN, PLACE, OWN): [_BY_ROW],
    ("ZerosLike", _BY_ROW): [_BY_ROW],
}
for _stack in STACKS:
    _OF_LISTS[_PUSH, _OPEN, _stack.element] = [_stack]
    _OF_LISTS[_POP, _stack, OWN] = [_POPPED, _stack.element or OWN]
_SUMS = ({_BY_ROW}, {SUM, OWN})


class RowLoop:
    """A loop whose rounds are those of the rows.

    The number of an input of its functions is its place among the loop's variables.

    Args:
        op: the loop.
        body: the function of a round.
        test: the function that says whether there is another round.

    Raises:
        NotByPartError: if it is another loop.
    """

    def __init__(self, op: Operation, body: Flat, test: Flat) -> None:
        self._op = op
        self._body = body
        self._results = list(map(self._origin, body.outputs))
        self._kept = [place for place, number in enumerate(self._results) if number == place]
        self._counters = list(filter(self._counts, body.inputs))
        # What a tensor of a round is; and the variable that it is, if it is a list or a total.
        self._known: dict[int, tuple[Value, int | None]] = {}
        is_tested = test.makers.keys() >= set(test.outputs)
        if not is_tested or not all(self._is_of_rows(test, node) for node in test.nodes):
            raise NotByPartError("a loop with another number of rounds")

    def _origin(self, number: int) -> int:
        """Returns the tensor of which another one is a copy."""
        node = self._body.makers.get(number)
        if node is None or node.operation.type != "Identity":
            return number
        return self._origin(node.inputs[0])

    def _counts(self, place: int) -> bool:
        """Whether a variable counts the rounds, from 0."""
        node = self._body.makers.get(self._results[place])
        if node is None or node.operation.type != "AddV2":
            return False
        first = self._op.sizes.numbers(self._op.node.inputs[place]) or ()
        step = tf.get_static_value(node.operation.inputs[1])
        is_next = self._origin(node.inputs[0]) == place and np.array_equal(step, 1)
        return is_next and np.array_equal(first, (0, 0))

    def _is_of_rows(self, test: Flat, node: Node) -> bool:
        """Whether an operation says that a round follows if there is another row."""
        if node.operation.type != "Less":
            is_alike = node.operation.type in ("Identity", "LogicalAnd")
            return is_alike and test.makers.keys() >= set(node.inputs)
        counter, end = node.inputs
        is_kept = counter in self._counters and end in self._kept
        return is_kept and self._is_n(self._op.node.inputs[end])

    def _is_n(self, number: int) -> bool:
        """Whether a tensor outside the loop is N."""
        numbers = self._op.sizes.numbers(number) or ()
        return np.array_equal(numbers, COUNTS)

    def split(self) -> Split:
        """Returns how a replica computes the loop."""
        kinds = {node.operation.type for node in self._body.nodes}
        if kinds.issuperset((_POP, _PUSH)):
            raise NotByPartError("a loop that pushes rows as it pops others")
        wants = []
        for place, value in enumerate(self._op.raw):
            if place in self._counters:
                self._known[self._results[place]] = COUNTER, None
                value = COUNTER if _POP in kinds else PLACE
            elif not value.is_list:
                value = OWN if place in self._kept else SUM
            self._known[place] = value, place
            wants.append(value if value.is_list or value == SUM else SAME)
        for node in self._body.nodes:
            self._plan(node)
        results = tuple(map(self._result, self._body.inputs))
        return Split(
            results,
            tuple(wants),
            self._make,
        )

    def _plan(self, node: Node) -> None:
        """Notes what the results of an operation are in a round.

        Raises:
            NotByPartError: if it uses more than this row, or the number of the row, which is
                another one in one process.
        """
        if not self._known.keys().isdisjoint(node.outputs):  # the next number of a counter
            return
        kind = node.operation.type
        given = [self._known[number] for number in node.inputs]
        values = [value for value, _ in given]
        variables = [
            variable
            for value, variable in given
            if variable is not None and (value.is_list or value == SUM)
        ]
        results = _OF_LISTS.get((kind, *values))
        if kind == "Identity":
            results = values
        elif kind in ("Add", "AddN", "AddV2") and len(variables) < 2 and set(values) in _SUMS:
            # What has nothing of other rows is added to a variable.
            results = [SUM if SUM in values else _BY_ROW]
        if results is None:
            definition = node.operation.op_def
            has_effect = definition.is_stateful and definition.name != "ReadVariableOp"
            calls = any("func" in attribute.type for attribute in definition.attr)
            is_alone = set(values) <= {OWN} and not is_drawn(node.operation)
            if has_effect or calls or not is_alone:
                raise NotByPartError("a loop that uses more than a row in a round")
            results = [OWN] * len(node.outputs)
        changed = variables[0] if variables and kind != "ZerosLike" else None
        self._known.update(
            (number, (value, changed)) for number, value in zip(node.outputs, results)
        )

    def _result(self, place: int) -> Value:
        """Returns what is known of a variable after the loop.

        A counter is N then, and a stack that the rounds have popped is empty.

        Raises:
            NotByPartError: if a round takes the variable from the one before it.
        """
        given = self._op.raw[place]
        if place in self._counters:
            self._op.sizes.bind(
                self._op.node.outputs[place],
                None,
                COUNTS,
            )
            return SAME
        if place in self._kept:
            return given if given.is_list else SAME
        value, variable = self._known[self._results[place]]
        if variable != place:
            raise NotByPartError("a round uses another one")
        if given == _OPEN and not self._is_for_rows(self._op.node.inputs[place]):
            raise NotByPartError("a list of another length")
        return value

    def _is_for_rows(self, number: int) -> bool:
        """Whether a list is new: a stack, or one with a place for each row."""
        maker = self._op.sizes.maker(number)
        if maker is None or maker.operation.type == "EmptyTensorList":
            return maker is not None
        return maker.operation.type == "TensorListReserve" and self._is_n(maker.inputs[1])

    def _make(self, emission: Emission, node: Node, inputs: list[tf.Tensor]) -> list[tf.Tensor]:
        """Writes the loop with a round for each of the replica's rows.

        A list that was made for N elements gets as many as the replica has rows.
        """
        own = emission.rows.own
        counter = self._counters[0]
        found = tf.while_loop(
            lambda *state: state[counter] < tf.cast(own, state[counter].dtype),
            lambda *state: emission.as_traced(self._body, state),
            inputs,
            parallel_iterations=node.operation.get_attr("parallel_iterations"),
        )
        results = []
        for place, tensor in enumerate(found):
            if place in self._counters:
                tensor = tf.cast(emission.rows.total, tensor.dtype)
            elif tensor.dtype == tf.variant and place not in self._kept:
                tensor = tf.raw_ops.TensorListResize(
                    input_handle=tensor,
                    size=own,
                )
            results.append(tensor)
        return results
