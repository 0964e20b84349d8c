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

# What a tensor of a round is. The source of a list or total is the place of its variable.
KINDS = {
    "own": OWN,  # of this row, or the same in all rounds
    "place": Value(Kind.PLACE),  # the number of the row
    "length": Value(Kind.PLACE, axis=1),  # the number of all rows, or of the replica's
    "rounds": SAME,  # counts rounds, which is no number of a row, or says if there is another one
    "total": SUM,
    "new": list_of(None),
}
KINDS |= {f"{name}s": list_of(KINDS[name]) for name in ("own", "place", "length")}
KINDS["popped"] = list_of(SAME)  # a stack, which is empty in the end
# Lists with an element for each row of a replica.
STACKS = {KINDS[name] for name in ("owns", "places", "lengths")}
# What an operation with lists or counters returns, by what it gets.
_TABLE = """
    AddV2                  place own      -> rounds
    AddV2                  rounds own     -> rounds
    Less                   place length   -> rounds
    LogicalAnd             rounds rounds  -> rounds
    TensorListElementShape owns           -> own
    TensorListGetItem      owns place own -> own
    TensorListLength       owns           -> length
    TensorListPopBack      lengths own    -> popped length
    TensorListPopBack      owns own       -> popped own
    TensorListPopBack      places own     -> popped place
    TensorListPushBack     new length     -> lengths
    TensorListPushBack     new own        -> owns
    TensorListPushBack     new place      -> places
    TensorListReserve      own length     -> owns
    TensorListSetItem      new place own  -> owns
    TensorListSetItem      owns place own -> owns
    ZerosLike              owns           -> owns
"""
_RETURNED = {}
for _line in _TABLE.strip().split("\n"):
    _given, _, _found = _line.partition("->")
    _kind, *_names = _given.split()
    _RETURNED[(_kind, *map(KINDS.get, _names))] = [KINDS[name] for name in _found.split()]


def row_loop(op: Operation) -> Split:
    """Returns how a replica computes a loop whose rounds are those of the rows.

    The number of an input of its functions is its place among the loop's variables.

    Raises:
        NotByPartError: if it is another loop.
    """
    body = op.function("body")
    test = op.function("cond")
    kinds = {node.kind for node in body.nodes}
    pops = "TensorListPopBack" in kinds
    if pops and "TensorListPushBack" in kinds:
        raise NotByPartError("a loop that pushes rows as it pops others")
    results = [_origin(body, number) for number in body.outputs]
    counters = []
    in_round = {}
    in_test = {}
    for place, value in enumerate(op.raw):
        kind, inputs = body.made(results[place])
        if (
            kind == "AddV2"
            and _origin(body, inputs[0]) == place
            and np.array_equal(tf.get_static_value(body.tensors[results[place]].op.inputs[1]), 1)
            and np.array_equal(op.numbers(place), (0, 0))
        ):
            counters.append(place)
            in_test[place] = KINDS["place"]
            in_round[place] = KINDS["rounds" if pops else "place"]
        elif place == results[place] and not value.is_list:
            is_n = np.array_equal(op.sizes.numbers(op.node.inputs[place]) or (), COUNTS)
            in_test[place] = KINDS["length" if is_n else "own"]
            in_round[place] = OWN
        else:
            in_round[place] = (value if value.is_list else SUM)._replace(source=place)
            in_test[place] = in_round[place]
    wants = [SAME if one.source is None else one._replace(source=None) for one in in_round.values()]
    for flat, known in ((body, in_round), (test, in_test)):
        for node in flat.nodes:
            known.update(zip(node.outputs, _results(node, [known[one] for one in node.inputs])))
    if in_test[test.outputs[0]] != KINDS["rounds"]:
        raise NotByPartError("a loop with another number of rounds")
    changed = [place for place, number in enumerate(results) if place not in (number, *counters)]
    for place in changed:
        kind, inputs = op.sizes.flat.made(op.node.inputs[place])
        # A stack, or a list with a place for each row.
        is_new = kind == "EmptyTensorList" or (
            kind == "TensorListReserve"
            and np.array_equal(op.sizes.numbers(inputs[1]) or (), COUNTS)
        )
        if in_round[results[place]].source != place or (
            op.raw[place] == KINDS["new"] and not is_new
        ):
            raise NotByPartError("a round takes another variable, or a list has another length")
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
        for place in changed:
            if op.raw[place].is_list:  # it was made for N elements
                tensors[place] = tf.raw_ops.TensorListResize(input_handle=tensors[place], size=own)
        return list(tensors)

    after = (in_round[number]._replace(source=None) for number in results)
    return op.split([SAME if one == OWN else one for one in after], *wants, make=make)


def _origin(body: Flat, number: int) -> int:
    """Returns the tensor of which another one is a copy."""
    kind, inputs = body.made(number)
    return _origin(body, inputs[0]) if kind == "Identity" else number


def _results(node: Node, given: Values) -> Values:
    """Returns what the results of an operation are in a round, or in the test for another one.

    Raises:
        NotByPartError: if it uses more than this row, or the number of the row, which is another
            one in one process.
    """
    if node.kind == "Identity":
        return given
    values = [one._replace(source=None) for one in given]
    kinds = set(values)
    variables = [one.source for one in given if one.source is not None]
    operation = node.operation
    found = _RETURNED.get((node.kind, *values))
    if found is None:
        if node.kind in ("Add", "AddN", "AddV2") and kinds in ({SUM, OWN}, {list_of(OWN)}):
            found = [SUM if SUM in kinds else list_of(OWN)]
        elif (
            kinds <= {OWN}
            and (node.kind == "ReadVariableOp" or not operation.op_def.is_stateful)
            and not (calls(operation) or is_drawn(operation))
        ):
            found = [OWN] * len(node.outputs)
    if found is None or len(variables) > 1:
        raise NotByPartError("a loop that uses more than a row in a round")
    place = variables[0] if variables and node.kind != "ZerosLike" else None
    return [one._replace(source=place) if one.is_list or one == SUM else one for one in found]
