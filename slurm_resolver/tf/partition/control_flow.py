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
from collections.abc import Sequence
from typing import TYPE_CHECKING, Callable

import tensorflow as tf

from slurm_resolver.tf.partition.effects import RANDOM
from slurm_resolver.tf.partition.emission import Emission, Split, shape_of_part
from slurm_resolver.tf.partition.inlining import CALLS
from slurm_resolver.tf.partition.lists import WholeListsError, join
from slurm_resolver.tf.partition.operation import Operation
from slurm_resolver.tf.partition.row_loops import STACKS, RowLoop
from slurm_resolver.tf.partition.sizes import is_count
from slurm_resolver.tf.partition.values import (
    LOCAL,
    SAME,
    SUM,
    NotByPartError,
    TensorNumbers,
    Tensors,
    Value,
    Values,
)

if TYPE_CHECKING:
    from slurm_resolver.tf.partition.plan import Plan

_ROUNDS = 12  # after which what is known of the variables of a loop no longer changes

# Variables of a loop: their numbers before it, and their places, which are their numbers in the
# loop's functions.
Alike = list[tuple[int, int]]


def condition(planner: Plan, op: Operation, given: Values) -> Split:
    """If and Case: what all branches return is converted into one value."""
    functions = op.attribute("branches") or map(op.attribute, ("then_branch", "else_branch"))
    plans = [
        planner.inner(
            branch,
            given[1:],
            zip(op.node.inputs[1:], branch.inputs),
        )
        for branch in map(op.node.function, functions)
    ]
    results = [functools.reduce(join, values) for values in zip(*(one.outputs for one in plans))]
    for plan in plans:
        _convert_outputs(plan, results)
    _bind_results(
        planner,
        op,
        plans,
    )
    return op.split(
        results,
        SAME,
        *given[1:],
        make=functools.partial(
            _write_condition,
            op,
            plans,
        ),
    )


def _bind_results(planner: Plan, op: Operation, plans: Sequence[Plan]) -> None:
    """Notes the sizes of the results that are the same in all branches."""
    sizes = (map(plan.sizes.known, plan.flat.outputs) for plan in plans)
    for number, first, *others in zip(op.node.outputs, *sizes):
        if all(other == first for other in others):
            planner.sizes.bind(number, *first)


def _write_condition(
    op: Operation,
    plans: Sequence[Plan],
    emission: Emission,
    inputs: Tensors,
) -> Tensors:
    test, *given = inputs
    branches = [
        functools.partial(
            _write_branch,
            emission,
            plan,
            given,
        )
        for plan in plans
    ]
    if op.kind.endswith("If"):
        found = tf.cond(tf.cast(test, tf.bool), *branches)
    else:
        found = tf.switch_case(test, branches)
    return list(found[1:])


def _write_branch(emission: Emission, plan: Plan, given: Tensors) -> Tensors:
    """Writes a branch, with one more result, since it may have no other."""
    return [tf.constant(0), *emission.inside(plan, given)]


def loop(planner: Plan, op: Operation, given: Values) -> Split:
    """While: its variables are the same kind of value in each round."""
    if not STACKS.isdisjoint(given):
        return RowLoop(op).split()
    plan, alike = _plan_round(
        planner,
        op,
        given,
    )
    test_plan = planner.inner(
        op.function("cond"),
        plan.inputs,
        alike,
        [SAME],
    )
    for number, place in alike:
        planner.sizes.bind(op.node.outputs[place], *planner.sizes.known(number))
    return op.split(
        plan.inputs,
        *plan.inputs,
        make=functools.partial(
            _write_loop,
            op,
            plan,
            test_plan,
        ),
    )


def _plan_round(
    planner: Plan,
    op: Operation,
    given: Values,
) -> tuple[Plan, Alike]:
    """Returns the plan of a loop's round, whose outputs become what its inputs are.

    It also returns the variables whose sizes no round changes.
    """
    body = op.function("body")
    values = list(given)
    alike = list(zip(op.node.inputs, body.inputs))
    for _ in range(_ROUNDS):
        plan = planner.inner(
            body,
            values,
            alike,
        )
        kept = _with_unchanged_sizes(
            planner,
            plan,
            alike,
        )
        after = _values_after(plan)
        if after == values and kept == alike:
            _check_rows(
                planner,
                op.node.inputs,
                values,
            )
            _convert_outputs(plan, values)
            return plan, alike
        alike = kept
        values = after
    raise NotByPartError("a loop with another value in each round")


def _with_unchanged_sizes(planner: Plan, plan: Plan, alike: Alike) -> Alike:
    return [
        (number, place)
        for number, place in alike
        if planner.sizes.known(number) == plan.sizes.known(plan.flat.outputs[place])
    ]


def _values_after(plan: Plan) -> list[Value]:
    """Returns what a loop's variables are before and after a round.

    A round may add elements to a list that are only known when all else is.
    """
    values = list(plan.inputs)
    joined = list(map(join, values, plan.outputs))
    others = [old if old.is_list else new for old, new in zip(values, joined)]
    return joined if others == values else others


def _write_loop(
    op: Operation,
    plan: Plan,
    test_plan: Plan,
    emission: Emission,
    inputs: Tensors,
) -> Tensors:
    is_ordered = _needs_order(plan) or _needs_order(test_plan)
    return list(
        tf.while_loop(
            lambda *state: emission.inside(test_plan, state)[0],
            lambda *state: emission.inside(plan, state),
            inputs,
            list(map(shape_of_part, op.traced.outputs, plan.inputs)),
            parallel_iterations=1 if is_ordered else op.attribute("parallel_iterations"),
        )
    )


def _needs_order(plan: Plan) -> bool:
    """Whether all replicas must compute the rounds of a function in the same order.

    Tensors may be put together in it, or random numbers drawn from a sequence.
    """
    kinds = {node.kind for node in plan.flat.nodes}
    return bool(plan.levels) or not kinds.isdisjoint(RANDOM.union(CONTROL_FLOW))


def _check_rows(planner: Plan, numbers: TensorNumbers, wanted: Values) -> None:
    """Raises NotByPartError if a tensor that has no rows should be divided."""
    for number, want in zip(numbers, wanted):
        if (
            want.has_rows
            and planner.values[number] == SAME
            and not is_count(planner.sizes.size(number, want.axis), want)
        ):
            raise NotByPartError("a tensor without rows becomes one with rows")


def _convert_outputs(plan: Plan, wanted: Values) -> None:
    """Lets a function return these values."""
    _check_rows(
        plan,
        plan.flat.outputs,
        wanted,
    )
    plan.wanted = wanted


def statistics(planner: Plan, op: Operation, given: Values) -> Split:
    """A function that each replica computes of its own rows, as if they were the whole batch.

    What enters its gradient as a SUM is the gradient of a replica's own statistic. If this is
    differentiated again, the statistics are those of all rows.
    """
    flat = op.function("f")
    whole = all(value == SAME for value in given)
    plan = planner.inner(
        flat,
        given if whole else op.values,
        zip(op.node.inputs, flat.inputs),
        inside=False,
    )
    for result, number in zip(op.node.outputs, flat.outputs):
        planner.sizes.bind(result, plan.sizes.shape(number))
    return op.split(
        SAME if whole else _own_results(op, plan),
        *given,
        make=lambda emission, inputs: emission.as_traced(flat, inputs),
    )


def _own_results(op: Operation, plan: Plan) -> list[Value]:
    """Returns what a replica has of what it computes of its own rows."""
    results = []
    for number, value in zip(plan.flat.outputs, plan.outputs):
        is_own = not (value.has_rows or value.is_list)
        if is_own and not plan.flat.tensors[number].shape.is_fully_defined():
            raise NotByPartError("statistics whose size depends on the rows")
        results.append(LOCAL if is_own else value)
    if LOCAL in results and (SUM in op.raw or LOCAL in op.raw):
        raise WholeListsError
    return results


# The rules get the planner, the operation, and what it is given: all of this is whole if it has to
# be computed whole.
CONTROL_FLOW: dict[str, Callable[[Plan, Operation, Values], Split]] = {
    **dict.fromkeys(CALLS, statistics),
    "Case": condition,
    "If": condition,
    "StatelessCase": condition,
    "StatelessIf": condition,
    "StatelessWhile": loop,
    "While": loop,
}
