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

from typing import Any

import numpy as np
import tensorflow as tf

from slurm_resolver.tf.partition.effects import is_drawn
from slurm_resolver.tf.partition.inlining import Flat, Node
from slurm_resolver.tf.partition.operation import Operation
from slurm_resolver.tf.partition.sizes import COUNTS
from slurm_resolver.tf.partition.values import (
    OWN,
    SAME,
    SUM,
    Kind,
    NotByPartError,
    Split,
    Value,
    list_of,
)

# What a tensor of a round is, besides OWN (of this row, or the same in all rounds) and lists.
PLACE = Value(Kind.PLACE)
COUNTER = Value(Kind.PLACE, axis=1)  # of a loop that pops: not the number of the row
LENGTH = Value(Kind.PLACE, axis=2)  # of a list: the number of all rows, or of the replica's
_BY_ROW = list_of(OWN)
_OPEN = list_of(None)
_ADDING = ("Add", "AddN", "AddV2")
_POP = "TensorListPopBack"
_PUSH = "TensorListPushBack"
_MOVING = (_POP, _PUSH)
_STACKS = {one: list_of(one) for one in (OWN, PLACE, LENGTH)}
# What an operation with lists returns, by what it gets.
_OF_LISTS: dict[tuple[Any, ...], Value] = {
    **{(_PUSH, _OPEN, one): stack for one, stack in _STACKS.items()},
    ("AddN", _BY_ROW, _BY_ROW): _BY_ROW,
    ("AddV2", _BY_ROW, _BY_ROW): _BY_ROW,
    ("TensorListElementShape", _BY_ROW): OWN,
    ("TensorListGetItem", _BY_ROW, PLACE, OWN): OWN,
    ("TensorListLength", _BY_ROW): LENGTH,
    ("TensorListReserve", OWN, LENGTH): _BY_ROW,
    ("TensorListSetItem", _BY_ROW, PLACE, OWN): _BY_ROW,
    ("TensorListSetItem", _OPEN, PLACE, OWN): _BY_ROW,
    ("ZerosLike", _BY_ROW): _BY_ROW,
}


def is_of_rows(value: Value) -> bool:
    """Whether it is a list with an element for each row of a replica."""
    return value in _STACKS.values()


class RowLoop:
    """A loop whose rounds are those of the rows.

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
        self._test = test
        self._pops = any(node.operation.type == _POP for node in body.nodes)
        self._results = [self._origin(body, number) for number in body.outputs]
        self._counters = [place for place in range(len(op.raw)) if self._counts(place)]
        self._totals = [place for place in range(len(op.raw)) if self._adds(place)]
        self._known: dict[int, Value] = {}
        self._check_rounds()

    @staticmethod
    def _origin(flat: Flat, number: int) -> int:
        """Returns the tensor of which another one is a copy."""
        node = flat.makers.get(number)
        while node is not None and node.operation.type == "Identity":
            number = node.inputs[0]
            node = flat.makers.get(number)
        return number

    def _added(self, place: int) -> list[int]:
        """Returns what a round adds to a variable; nothing if it does something else with it."""
        number = self._body.inputs[place]
        node = self._body.makers.get(self._results[place])
        if node is None or node.operation.type not in _ADDING:
            return []
        inputs = [self._origin(self._body, one) for one in node.inputs]
        return [one for one in inputs if one != number] if inputs.count(number) == 1 else []

    def _constant(self, number: int) -> Any:
        """Returns the value of a constant of the body; None of another tensor."""
        node = self._body.makers.get(number)
        return tf.get_static_value(node.operation.outputs[0]) if node is not None else None

    def _counts(self, place: int) -> bool:
        """Whether a variable counts the rounds, from 0."""
        tensor = self._op.node.operation.inputs[place]
        added = self._added(place)
        if not tensor.dtype.is_integer or tensor.shape.rank != 0 or len(added) != 1:
            return False
        first = self._op.sizes.numbers(self._op.node.inputs[place])
        return self._constant(added[0]) == 1 and first is not None and first == (0, 0)

    def _adds(self, place: int) -> bool:
        """Whether a variable is a total, to which each round adds.

        Nothing else may use it, neither before nor after the number of the row is added.
        """
        tensor = self._op.node.operation.inputs[place]
        dtype = tensor.dtype
        is_number = dtype.is_floating or dtype.is_integer or dtype.is_complex
        if place in self._counters or not is_number or not self._added(place):
            return False
        number = self._body.inputs[place]
        result = self._results[place]
        used = [
            self._origin(self._body, one)
            for node in self._body.nodes
            for one in node.inputs
            if node.operation.type != "Identity"
        ]
        used += self._results
        return used.count(number) == used.count(result) == 1

    def _is_kept(self, place: int) -> bool:
        """Whether a variable stays as it is."""
        return self._results[place] == self._body.inputs[place]

    def _check_rounds(self) -> None:
        """Raises NotByPartError unless there is a round for each row."""
        waiting = [self._test.outputs[0]]
        while waiting:
            node = self._test.makers.get(waiting.pop())
            if node is None:
                raise NotByPartError("a loop with another number of rounds")
            if node.operation.type in ("Identity", "LogicalAnd"):
                waiting += node.inputs
                continue
            places = [
                self._test.inputs.index(one)
                for one in node.inputs
                if node.operation.type == "Less" and one in self._test.inputs
            ]
            is_less = len(places) == 2 and places[0] in self._counters
            if not is_less or not self._is_kept(places[1]):
                raise NotByPartError("a loop with another number of rounds")
            if not self._is_number_of_rows(self._op.node.inputs[places[1]]):
                raise NotByPartError("a loop with another number of rounds")

    def split(self) -> Split:
        """Returns how a replica computes the loop."""
        op = self._op
        wants = []
        for place, number in enumerate(self._body.inputs):
            given = op.raw[place]
            if place in self._counters:
                value = COUNTER if self._pops else PLACE
            else:
                value = given if given.is_list else OWN
            self._known[number] = value
            if place in self._totals:
                wants.append(SUM)
            else:
                wants.append(given if given.is_list else SAME)
        for node in self._body.nodes:
            results = self._round(node)
            self._known.update(zip(node.outputs, results))
        return Split(
            tuple(self._result(place) for place in range(len(op.raw))),
            tuple(wants),
            self._make,
        )

    def _result(self, place: int) -> Value:
        """Returns what is known of a variable after the loop.

        A counter is N then, and a stack that the rounds have popped is empty.

        Raises:
            NotByPartError: if a round takes the variable from the one before it.
        """
        if place in self._counters:
            self._op.sizes.bind(self._op.node.outputs[place], None, COUNTS)
            return SAME
        if place in self._totals:
            return SUM
        given = self._op.raw[place]
        if self._is_kept(place):
            return given if given.is_list else SAME
        found = self._known[self._results[place]]
        if self._is_moved(place, _POP):
            return list_of(SAME)  # without elements
        if not found.is_list or (is_of_rows(given) and given != found):
            raise NotByPartError("a round uses another one")
        if self._is_reserved(place) and not self._is_of_all_rows(place):
            raise NotByPartError("a list of another length")
        return found

    def _is_of_all_rows(self, place: int) -> bool:
        """Whether a list without elements has been made for an element of each row."""
        maker = self._op.sizes.maker(self._op.node.inputs[place])
        if maker is None or maker.operation.type != "TensorListReserve":
            return False
        return self._is_number_of_rows(maker.inputs[1])

    def _is_number_of_rows(self, number: int) -> bool:
        """Whether a tensor outside the loop is N."""
        numbers = self._op.sizes.numbers(number)
        return numbers is not None and np.array_equal(numbers, COUNTS)

    def _round(self, node: Node) -> list[Value]:
        """Returns what the results of an operation are in a round."""
        kind = node.operation.type
        given = [self._known[number] for number in node.inputs]
        if any(node.outputs == (self._results[place],) for place in self._counters):
            return [COUNTER]
        if kind in _MOVING and not (self._moves(node) and self._pops == (kind == _POP)):
            raise NotByPartError("a loop over rows")
        if kind == "Identity":
            return given
        found = _OF_LISTS.get((kind, *given))
        if found is not None:
            return [found]
        if kind == _POP and given[0] in _STACKS.values() and given[0].element:
            return [given[0], given[0].element]
        self._check_alone(node, given)
        return [OWN] * len(node.outputs)

    def _moves(self, node: Node) -> bool:
        """Whether a variable is a list to which an element is added, or from which one is taken."""
        return any(
            (number, result) == (self._origin(self._body, node.inputs[0]), node.outputs[0])
            for number, result in zip(self._body.inputs, self._results)
        )

    def _is_moved(self, place: int, kind: str) -> bool:
        """Whether a round pushes to a variable, or pops from it."""
        node = self._body.makers.get(self._results[place])
        return node is not None and node.operation.type == kind

    def _check_alone(self, node: Node, given: list[Value]) -> None:
        """Raises NotByPartError for an operation that uses more than this row.

        It may not use the number of the row either: that is another one in one process.
        """
        definition = node.operation.op_def
        has_effect = definition.is_stateful and definition.name != "ReadVariableOp"
        calls = any("func" in attribute.type for attribute in definition.attr)
        is_list = any(output.dtype == tf.variant for output in node.operation.outputs)
        is_alone = set(given) <= {OWN} and not is_drawn(node.operation)
        if has_effect or calls or is_list or not is_alone:
            raise NotByPartError("a loop over rows")

    def _is_reserved(self, place: int) -> bool:
        """Whether a list has been made for all rows, and has no elements yet."""
        is_open = self._op.raw[place] == list_of(None)
        return is_open and not self._is_moved(place, _PUSH)

    def _make(self, emission: Any, node: Any, inputs: list[Any]) -> list[Any]:
        """Writes the loop with a round for each of the replica's rows.

        A list that was made for N elements gets as many as the replica has rows.
        """
        own = emission.rows.own
        moving = []
        for place in range(len(inputs)):
            if self._is_kept(place):
                continue
            moving.append(place)
            if self._is_reserved(place):
                inputs[place] = tf.raw_ops.TensorListResize(
                    input_handle=inputs[place],
                    size=own,
                )
        counter = moving.index(self._counters[0])

        def again(*state: Any) -> list[Any]:
            variables = list(inputs)
            for place, tensor in zip(moving, state):
                variables[place] = tensor
            outputs = emission.as_traced(self._body, variables)
            return [outputs[place] for place in moving]

        found = tf.while_loop(
            lambda *state: state[counter] < tf.cast(own, state[counter].dtype),
            again,
            [inputs[place] for place in moving],
            parallel_iterations=node.operation.get_attr("parallel_iterations"),
        )
        for place, tensor in zip(moving, found):
            inputs[place] = tensor
        for place in self._counters:
            inputs[place] = tf.cast(emission.rows.total, inputs[place].dtype)
        return inputs
