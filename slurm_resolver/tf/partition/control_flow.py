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
from typing import Callable

import tensorflow as tf

from slurm_resolver.tf.partition.effects import RANDOM
from slurm_resolver.tf.partition.emission import Emission, Plan, Split, shape_of_part
from slurm_resolver.tf.partition.inlining import CALLS, Flat
from slurm_resolver.tf.partition.lists import WholeListsError, join, wholes
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
    Values,
)

_ROUNDS = 12  # after which what is known of the variables of a loop no longer changes


def condition(planner: Plan, op: Operation, whole: bool) -> Split:
    """If and Case: what all branches return is converted into one value."""
    given = wholes(op) if whole else op.raw
    plans = []
    for function in op.attribute("branches") or map(op.attribute, ("then_branch", "else_branch")):
        branch = op.node.function(function)
        plans.append(
            planner.inner(
                branch,
                given[1:],
                zip(op.node.inputs[1:], branch.inputs),
            )
        )
    results = [functools.reduce(join, values) for values in zip(*(one.outputs for one in plans))]
    for plan in plans:
        _check_rows(
            plan,
            plan.flat.outputs,
            results,
        )
        plan.wanted = results
    for number, *ends in zip(op.node.outputs, *(plan.flat.outputs for plan in plans)):
        first, *others = map(Plan.known_sizes, plans, ends)
        if all(other == first for other in others):
            planner.sizes.bind(number, *first)

    def make(emission: Emission, inputs: Tensors) -> Tensors:
        def branch(plan: Plan) -> Tensors:
            return [tf.constant(0), *emission.inside(plan, inputs[1:])]

        functions = [functools.partial(branch, plan) for plan in plans]
        if op.kind.endswith("If"):
            found = tf.cond(tf.cast(inputs[0], tf.bool), *functions)
        else:
            found = tf.switch_case(inputs[0], functions)
        return list(found[1:])

    return op.split(
        results,
        SAME,
        *given[1:],
        make=make,
    )


def loop(planner: Plan, op: Operation, whole: bool) -> Split:
    """While: its variables are the same kind of value in each round."""
    given = wholes(op) if whole else op.raw
    body = op.node.function(op.attribute("body"))
    test = op.node.function(op.attribute("cond"))
    if not whole and not STACKS.isdisjoint(given):
        return RowLoop(
            op,
            body,
            test,
        ).split()
    plan, alike = _plan_round(
        planner,
        op,
        body,
        given,
    )
    values = plan.inputs
    test_plan = planner.inner(
        test,
        values,
        alike,
        [SAME],
    )
    for number, place in alike:
        planner.sizes.bind(op.node.outputs[place], *planner.known_sizes(number))
    is_ordered = any(map(_needs_order, (plan, test_plan)))

    def make(emission: Emission, inputs: Tensors) -> Tensors:
        found: Tensors = tf.while_loop(
            lambda *state: emission.inside(test_plan, state)[0],
            lambda *state: emission.inside(plan, state),
            inputs,
            list(map(shape_of_part, op.traced.outputs, values)),
            parallel_iterations=1 if is_ordered else op.attribute("parallel_iterations"),
        )
        return found

    return op.split(
        values,
        *values,
        make=make,
    )


def _plan_round(
    planner: Plan,
    op: Operation,
    body: Flat,
    given: Values,
) -> tuple[Plan, list[tuple[int, int]]]:
    """Returns the plan of a loop's round, whose outputs become what its inputs are.

    It also returns the variables whose sizes no round changes: their numbers before the loop, and
    their places, which are their numbers in the loop's functions.
    """
    values = list(given)
    alike = list(zip(op.node.inputs, body.inputs))
    for _ in range(_ROUNDS):
        plan = planner.inner(
            body,
            values,
            alike,
        )
        kept = [
            (number, place)
            for number, place in alike
            if planner.known_sizes(number) == plan.known_sizes(body.outputs[place])
        ]
        joined = list(map(join, values, plan.outputs))
        if joined == values and kept == alike:
            _check_rows(
                planner,
                op.node.inputs,
                values,
            )
            _check_rows(
                plan,
                body.outputs,
                values,
            )
            plan.wanted = values
            return plan, alike
        alike = kept
        # A round may add elements to a list that are only known when all else is.
        others = [old if old.is_list else new for old, new in zip(values, joined)]
        values = joined if others == values else others
    raise NotByPartError("a loop with another value in each round")


def _needs_order(plan: Plan) -> bool:
    """Whether all replicas must compute the rounds of a function in the same order.

    Tensors may be put together in it, or random numbers drawn from a sequence.
    """
    kinds = {node.kind for node in plan.flat.nodes}
    return bool(plan.levels) or not kinds.isdisjoint(RANDOM.union(CONTROL_FLOW))


def _check_rows(planner: Plan, numbers: TensorNumbers, wanted: Values) -> None:
    """Raises NotByPartError if a tensor that has no rows should be divided."""
    for number, want in zip(numbers, wanted):
        is_divided = want.has_rows and planner.values[number] == SAME
        if is_divided and not is_count(planner.sizes.size(number, want.axis), want):
            raise NotByPartError("a tensor without rows becomes one with rows")


def statistics(planner: Plan, op: Operation, whole: bool) -> Split:
    """A function that each replica computes of its own rows, as if they were the whole batch.

    What enters its gradient as a SUM is the gradient of a replica's own statistic. If this is
    differentiated again, the statistics are those of all rows.
    """
    flat = op.node.function(op.attribute("f"))
    whole |= all(value == SAME for value in op.raw)
    given = [SAME] * len(op.raw) if whole else op.values
    plan = planner.inner(
        flat,
        given,
        zip(op.node.inputs, flat.inputs),
        inside=False,
    )
    results = []
    for result, number, value in zip(op.node.outputs, flat.outputs, plan.outputs):
        planner.sizes.bind(result, plan.sizes.shape(number))
        is_own = not (whole or value.has_rows or value.is_list)
        if is_own and not flat.tensors[number].shape.is_fully_defined():
            raise NotByPartError("statistics whose size depends on the rows")
        results.append(SAME if whole else LOCAL if is_own else value)
    if LOCAL in results and (SUM in op.raw or LOCAL in op.raw):
        raise WholeListsError

    return op.split(
        results,
        *given if whole else op.raw,
        make=lambda emission, inputs: emission.as_traced(flat, inputs),
    )


# The rules get the planner, the operation, and whether it has to be computed whole.
CONTROL_FLOW: dict[str, Callable[[Plan, Operation, bool], Split]] = {
    **dict.fromkeys(CALLS, statistics),
    "Case": condition,
    "If": condition,
    "StatelessCase": condition,
    "StatelessIf": condition,
    "StatelessWhile": loop,
    "While": loop,
}
