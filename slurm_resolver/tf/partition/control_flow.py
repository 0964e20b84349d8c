"""Conditions and loops: how their functions are planned, and written.

A condition is the same in all replicas, and so is the number of rounds of a loop. So all replicas
put together the same tensors inside. That is impossible for several replicas in a task: there, a
condition or loop that needs it is computed whole.

A loop's variables must be the same kind of value in each round. The search begins with what they
are before the loop, and joins that with what a round makes of them, until nothing changes. In a
loop that adds up losses of rows, for example::

    variable   before the loop    after a round   in each round
    state      SAME (zeros)       ROWS            ROWS: each replica slices the zeros
    total      SAME (0.0)         SUM             SUM: the zero counts in the first replica
    turn       SAME               SAME            SAME
"""

from __future__ import annotations

import functools
from collections.abc import Collection, Sequence
from typing import Any, Callable

import tensorflow as tf

from slurm_resolver.tf.partition.inlining import CALLS, Flat
from slurm_resolver.tf.partition.operation import Operation
from slurm_resolver.tf.partition.plan import Plan, Planner, WholeListsError
from slurm_resolver.tf.partition.row_loops import RowLoop, is_of_rows
from slurm_resolver.tf.partition.sizes import is_count
from slurm_resolver.tf.partition.values import (
    LOCAL,
    SAME,
    SUM,
    Kind,
    NotByPartError,
    Split,
    Value,
    join,
    list_of,
)

_ROUNDS = 12  # after which what is known of the variables of a loop no longer changes


def condition(planner: Planner, op: Operation, whole: bool) -> Split:
    """If and Case: what all branches return is converted into one value."""
    given = planner.wholes(op) if whole else list(op.raw)
    branches = [op.node.function(name) for name in _branches(op)]
    places = range(1, len(op.raw))

    def planners() -> list[Planner]:
        return [
            _inner(
                planner,
                op,
                branch,
                given[1:],
                places,
            )
            for branch in branches
        ]

    plans = [one.run() for one in planners()]
    results = [
        _joined(planner, values, output.dtype)
        for output, values in zip(op.node.operation.outputs, zip(*(one.outputs for one in plans)))
    ]
    inner = planners()
    plans = [one.run(results) for one in inner]
    for place, number in enumerate(op.node.outputs):
        shapes = [one.sizes.shape(one.flat.outputs[place]) for one in inner]
        if all(shape == shapes[0] for shape in shapes):
            planner.sizes.bind(number, shapes[0])

    def make(emission: Any, node: Any, inputs: list[Any]) -> list[Any]:
        def branch(plan: Plan) -> list[Any]:
            return [tf.constant(0), *emission.inside(plan, inputs[1:])]

        functions = [functools.partial(branch, plan) for plan in plans]
        if node.operation.type.endswith("If"):
            found = tf.cond(tf.cast(inputs[0], tf.bool), *functions)
        else:
            found = tf.switch_case(inputs[0], functions)
        return list(found[1:])

    return Split(
        tuple(results),
        (SAME, *given[1:]),
        make,
    )


def _branches(op: Operation) -> list[str]:
    """Returns the names of the functions, of which the condition takes one."""
    if op.kind.endswith("If"):
        found = [op.attribute("then_branch"), op.attribute("else_branch")]
    else:
        found = op.attribute("branches")
    return [function.name for function in found]


def _joined(planner: Planner, values: Sequence[Value], dtype: Any) -> Value:
    """Returns what the results of all branches are converted into."""
    found: Value | None = None
    for value in values:
        try:
            found = join(found, value)
        except NotByPartError:
            if value.is_list or not planner.sends_inside:
                raise
            return SAME
    assert found is not None
    if found == SUM and not (dtype.is_floating or dtype.is_integer or dtype.is_complex):
        raise NotByPartError("an addend that is no number")
    return found


def loop(planner: Planner, op: Operation, whole: bool) -> Split:
    """While: its variables are the same kind of value in each round."""
    given = planner.wholes(op) if whole else list(op.raw)
    body = op.node.function(op.attribute("body").name)
    test = op.node.function(op.attribute("cond").name)
    if not whole and any(map(is_of_rows, given)):
        return RowLoop(op, body, test).split()
    fixed = {
        place for place, pair in enumerate(zip(body.inputs, body.outputs)) if pair[0] == pair[1]
    }
    try:
        search = _Search(
            planner,
            op,
            body,
            given,
            fixed,
        )
        values = search.run()
        plan = search.plan(values, values)
        test_plan = _inner(
            planner,
            op,
            test,
            values,
            search.places,
            fixed,
        ).run([SAME])
    except WholeListsError as error:
        makers = [
            planner.makers_of(number)
            for number, value in zip(op.node.inputs, op.raw)
            if value.is_list
        ]
        raise WholeListsError(error.nodes.union({op.node}, *makers)) from None
    _check_convertible(
        op,
        given,
        values,
    )
    for place in search.places:
        is_sized = not values[place].is_list and place not in search.resized
        if is_sized:
            planner.sizes.bind(op.node.outputs[place], planner.sizes.shape(op.node.inputs[place]))
    moving = [place for place in search.places if place not in fixed]
    shapes = [_open_shape(op.node.operation.outputs[place], values[place]) for place in moving]
    sends = any(_may_send(one) for one in (plan, test_plan))

    def make(emission: Any, node: Any, inputs: list[Any]) -> list[Any]:
        def variables(state: Sequence[Any]) -> list[Any]:
            found = list(inputs)
            for place, tensor in zip(moving, state):
                found[place] = tensor
            return found

        def goes_on(*state: Any) -> Any:
            return emission.inside(test_plan, variables(state))[0]

        def again(*state: Any) -> list[Any]:
            outputs = emission.inside(plan, variables(state))
            return [outputs[place] for place in moving]

        begin = [inputs[place] for place in moving]
        # A round puts tensors together after the one before it has, in the same order everywhere.
        parallel = 1 if sends else node.operation.get_attr("parallel_iterations")
        found = tf.while_loop(
            goes_on,
            again,
            begin,
            shapes,
            parallel_iterations=parallel,
        )
        return variables(found)

    return Split(
        tuple(values),
        tuple(values),
        make,
    )


def _may_send(plan: Plan) -> bool:
    """Whether tensors may be put together in a function."""
    nodes = plan.flat.nodes
    return bool(plan.levels) or any(node.operation.type in CONTROL_FLOW for node in nodes)


class _Search:
    """Looks for what the variables of a loop are in each round.

    Args:
        fixed: the places of the variables that no round changes.
    """

    def __init__(
        self,
        planner: Planner,
        op: Operation,
        body: Flat,
        given: list[Value],
        fixed: set[int],
    ) -> None:
        self._planner = planner
        self._op = op
        self._body = body
        self._given = given
        self._fixed = fixed
        self.places = range(len(given))
        self.resized: set[int] = set()  # variables whose shape a round changes

    def plan(self, values: list[Value], wanted: list[Value] | None = None) -> Plan:
        """Returns the plan of a round."""
        inner = _inner(
            self._planner,
            self._op,
            self._body,
            values,
            self.places,
            self._fixed,
            self.resized,
        )
        plan = inner.run(wanted)
        for place, pair in enumerate(zip(self._body.inputs, self._body.outputs)):
            before, after = map(inner.sizes.shape, pair)
            if not values[place].is_list and before != after:
                self.resized.add(place)
        return plan

    def run(self) -> list[Value]:
        """Returns what the variables are in each round.

        A list without elements keeps none, until all else is known: a round may add elements that
        are only known then.
        """
        values = self._settle(self._given, keep_open=True)
        after = self.plan(values).outputs
        closed = [
            found if value == list_of(None) and found.is_list else value
            for value, found in zip(values, after)
        ]
        return self._settle(closed, keep_open=False)

    def _settle(self, values: list[Value], *, keep_open: bool) -> list[Value]:
        for _ in range(_ROUNDS):
            resized = len(self.resized)
            after = self.plan(values).outputs
            joined = []
            for place, (value, found) in enumerate(zip(values, after)):
                is_kept = place in self._fixed or (keep_open and value == list_of(None))
                one = value if is_kept else join(value, found)
                assert one is not None
                joined.append(one)
            if joined == values and resized == len(self.resized):
                return values
            values = joined
        raise NotByPartError("a loop with another value in each round")


def _inner(
    planner: Planner,
    op: Operation,
    flat: Flat,
    values: Sequence[Value],
    places: Sequence[int],
    fixed: Collection[int] | None = None,
    resized: Collection[int] = (),
) -> Planner:
    """Returns the planner of a function that an operation calls.

    Args:
        values: what its inputs are.
        places: those of its inputs among the operation's inputs.
        fixed: the places of the inputs that are the same in each call; None if all are.
        resized: the places of the inputs whose shapes differ from round to round.
    """
    inner = Planner(
        flat,
        values,
        planner.control_flow,
        planner.whole,
        inside=True,
        sends_inside=planner.sends_inside,
    )
    _bind(inner, planner, op, places, fixed, resized)
    return inner


def _bind(
    inner: Planner,
    planner: Planner,
    op: Operation,
    places: Sequence[int],
    fixed: Collection[int] | None = None,
    resized: Collection[int] = (),
) -> None:
    """Tells the planner of a function the sizes of its inputs; see `_inner`."""
    for place, number in zip(places, inner.flat.inputs):
        outer = op.node.inputs[place]
        tensor = inner.flat.tensors[number]
        if inner.values[number].is_list or tensor.dtype in (tf.resource, tf.variant):
            continue
        is_fixed = fixed is None or place in fixed
        is_small = tensor.dtype.is_integer and tensor.shape.rank in (0, 1)
        shapes = None if place in resized else planner.sizes.shape(outer)
        numbers = planner.sizes.numbers(outer) if is_fixed and is_small else None
        inner.sizes.bind(number, shapes, numbers)


def _check_convertible(op: Operation, given: Sequence[Value], values: Sequence[Value]) -> None:
    """Raises NotByPartError if a variable begins as something that has no rows."""
    for number, before, value in zip(
        op.node.inputs,
        given,
        values,
    ):
        if value.has_rows and before.kind is Kind.SAME:
            size = op.sizes.size(number, value.axis)
            if not is_count(
                size,
                value.outer,
                value.inner,
            ):
                raise NotByPartError("a variable of a loop that begins without rows")


def _open_shape(tensor: Any, value: Value) -> Any:
    """Returns the shape of a variable in each round, with an unknown size for the rows."""
    if tensor.dtype == tf.variant:
        return tf.TensorShape([])
    if tensor.shape.rank is None or not value.has_rows:
        return tensor.shape
    sizes = tensor.shape.as_list()
    sizes[value.axis] = None
    return tf.TensorShape(sizes)


def statistics(planner: Planner, op: Operation, whole: bool) -> Split:
    """A function that each replica computes of its own rows, as if they were the whole batch.

    What enters its gradient as a SUM is the gradient of a replica's own statistic. If this is
    differentiated again, the statistics are those of all rows.
    """
    flat = op.node.function(op.attribute("f").name)
    whole |= all(value == SAME for value in op.raw)
    given = [SAME] * len(op.raw) if whole else op.values
    inner = Planner(flat, given, planner.control_flow, planner.whole)
    _bind(inner, planner, op, range(len(given)))
    found = inner.run().values
    results = []
    for result, number in zip(op.node.outputs, flat.outputs):
        shapes = inner.sizes.shape(number)
        planner.sizes.bind(result, shapes)
        if whole:
            results.append(SAME)
        elif found[number].has_rows or found[number].is_list:
            results.append(found[number])
        elif shapes is None or None in shapes[0] or shapes[0] != shapes[1]:
            raise NotByPartError("statistics whose size depends on the rows")
        else:
            results.append(LOCAL)
    if LOCAL in results and (SUM in op.raw or LOCAL in op.raw):
        raise WholeListsError(node for node in planner.flat.nodes if node.operation.type in CALLS)

    def make(emission: Any, node: Any, inputs: list[Any]) -> list[Any]:
        outputs: list[Any] = emission.as_traced(flat, inputs)
        return outputs

    return Split(tuple(results), tuple(given if whole else op.raw), make)


CONTROL_FLOW: dict[str, Callable[[Planner, Operation, bool], Split]] = {
    **dict.fromkeys(CALLS, statistics),
    "Case": condition,
    "If": condition,
    "StatelessCase": condition,
    "StatelessIf": condition,
    "StatelessWhile": loop,
    "While": loop,
}
