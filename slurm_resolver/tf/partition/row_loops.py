"""Loops that compute each row by itself, such as those of `tf.map_fn` and of its gradient.

One process takes a round for each of the N rows. A replica takes one for each of its own rows, with
the same operations, if a round uses nothing of another round. For that, each tensor of a round is
of one of these kinds::

    own       of this row, or the same in all rounds, as a variable that stays as it is
    place     the number of the row: a counter of the rounds, from 0
    length    the number of all rows, or of the replica's
    rounds    counts rounds, and is no number of a row
    again     says if there is another round
    total     the sum of a number of each row, with which nothing else is done
    new       a list without elements
    reserved  a list with a place for each row
    owns      a list, or a stack, with an element of each row; so are "places" and "lengths"
    popped    a stack, which is empty in the end

A loop that pops takes the rows from the last one to the first. So what it pops says which row it
is, and not its counter.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Optional

import numpy as np
import tensorflow as tf

from slurm_resolver.tf.partition.effects import calls, is_drawn
from slurm_resolver.tf.partition.emission import Emission, Split
from slurm_resolver.tf.partition.inlining import Flat, Node
from slurm_resolver.tf.partition.operation import Operation
from slurm_resolver.tf.partition.values import (
    COUNTS,
    SAME,
    SUM,
    Kind,
    NotByPartError,
    Tensors,
    Value,
    list_of,
)

# What an operation with lists, counters or totals returns, by what it gets. Add, AddN and AddV2 get
# each of these once or several times, in any order.
_TABLE = """
    Add                    own place          -> rounds
    Add                    own rounds         -> rounds
    Add                    own total          -> total
    Add                    owns               -> owns
    Less                   place length       -> again
    LogicalAnd             again again        -> again
    TensorListElementShape owns               -> own
    TensorListGetItem      owns place own     -> own
    TensorListLength       owns               -> length
    TensorListPopBack      lengths own        -> popped length
    TensorListPopBack      owns own           -> popped own
    TensorListPopBack      places own         -> popped place
    TensorListPushBack     new length         -> lengths
    TensorListPushBack     new own            -> owns
    TensorListPushBack     new place          -> places
    TensorListReserve      own length         -> owns
    TensorListSetItem      reserved place own -> owns
    TensorListSetItem      owns place own     -> owns
    ZerosLike              owns               -> owns
"""
_RETURNED = {
    tuple(given.split()): found.split()
    for given, found in (line.split("->") for line in _TABLE.strip().split("\n"))
}
# All others are lists or totals, of which a round must give the same variable what it has changed.
_NUMBERS = ("again", "length", "own", "place", "rounds")

# The kind of a tensor in a round, and the place of the variable that it was made of.
_Kind = tuple[str, Optional[int]]


def row_loop(op: Operation) -> Split:
    """Returns how a replica computes a loop whose rounds are those of the rows.

    The number of an input of its functions is its place among the loop's variables.

    Raises:
        NotByPartError: if it is another loop.
    """
    body = op.function("body")
    test = op.function("cond")
    types = {node.kind for node in body.nodes}
    pops = "TensorListPopBack" in types
    if pops and "TensorListPushBack" in types:
        raise NotByPartError("a loop that pushes rows as it pops others")
    kinds = [_kind(op, body, place) for place in body.inputs]
    counters = [place for place, kind in enumerate(kinds) if kind == "place"]
    if _outputs(test, kinds) != [("again", None)]:
        raise NotByPartError("a loop with another number of rounds")
    wants = [value if value.is_list else SAME for value in op.raw]
    for place, kind in enumerate(kinds):
        if kind == "total":
            wants[place] = SUM
    after = list(wants)
    in_body = {"length": "own", "place": "rounds" if pops else "place"}
    outputs = _outputs(body, [in_body.get(kind, kind) for kind in kinds])
    for place, (kind, variable) in enumerate(outputs):
        if wants[place] == SAME or (kind, variable) == (kinds[place], place):
            continue
        if variable != place:
            raise NotByPartError("a round takes another variable")
        after[place] = list_of(SAME) if kind == "popped" else Value(Kind.LIST, role=kind)
    for place in counters:
        op.sizes.bind(op.node.outputs[place], None, COUNTS)

    def make(emission: Emission, inputs: Tensors) -> Tensors:
        own = emission.rows.own
        tensors = tf.while_loop(
            lambda *state: state[counters[0]] < tf.cast(own, state[counters[0]].dtype),
            lambda *state: emission.as_traced(body, state),
            inputs,
            parallel_iterations=op.attribute("parallel_iterations"),
        )
        for place in counters:
            tensors[place] = tf.cast(emission.rows.total, tensors[place].dtype)
        for place, value in enumerate(after):
            if value.role and kinds[place] == "reserved":  # for N elements
                tensors[place] = tf.raw_ops.TensorListResize(input_handle=tensors[place], size=own)
        return list(tensors)

    return op.split(after, *wants, make=make)


def _kind(op: Operation, body: Flat, place: int) -> str:
    """Returns the kind of a variable before the loop, given what a round makes of it."""
    value = op.raw[place]
    given = op.node.inputs[place]
    result = _origin(body, body.outputs[place])
    made, inputs = op.sizes.flat.made(given)
    if value.is_list:
        if made == "TensorListReserve" and op.sizes.are(inputs[1], COUNTS):
            return "reserved"
        return value.role or ("new" if made == "EmptyTensorList" else "other")
    if result == place:
        return "length" if op.sizes.are(given, COUNTS) else "own"
    made, inputs = body.made(result)
    if (
        made == "AddV2"
        and _origin(body, inputs[0]) == place
        and np.array_equal(tf.get_static_value(body.tensors[result].op.inputs[1]), 1)
        and op.sizes.are(given, (0, 0))
    ):
        return "place"
    return "total"


def _origin(body: Flat, number: int) -> int:
    """Returns the tensor of which another one is a copy."""
    kind, inputs = body.made(number)
    return _origin(body, inputs[0]) if kind == "Identity" else number


def _outputs(flat: Flat, kinds: Sequence[str]) -> list[_Kind]:
    """Returns the kinds of the outputs of a loop's function, given those of the variables."""
    known: dict[int, _Kind] = {place: (kind, place) for place, kind in enumerate(kinds)}
    for node in flat.nodes:
        known.update(zip(node.outputs, _results(node, [known[one] for one in node.inputs])))
    return [known[number] for number in flat.outputs]


def _results(node: Node, given: Sequence[_Kind]) -> Sequence[_Kind]:
    """Returns what the results of an operation are in a round, or in the test for another one.

    Raises:
        NotByPartError: if it uses more than this row, or the number of the row, which is another
            one in one process.
    """
    if node.kind == "Identity":
        return given
    kinds = [kind for kind, _ in given]
    variables = [place for kind, place in given if kind not in _NUMBERS and place is not None]
    if node.kind in ("Add", "AddN", "AddV2"):
        found = _RETURNED.get(("Add", *sorted(set(kinds))))
    else:
        found = _RETURNED.get((node.kind, *kinds))
    operation = node.operation
    if (
        found is None
        and {"own"}.issuperset(kinds)
        and (node.kind == "ReadVariableOp" or not operation.op_def.is_stateful)
        and not (calls(operation) or is_drawn(operation))
    ):
        found = ["own"] * len(node.outputs)
    if found is None or len(variables) > 1:
        raise NotByPartError("a loop that uses more than a row in a round")
    place = variables[0] if variables and node.kind != "ZerosLike" else None
    return [(kind, place) for kind in found]
