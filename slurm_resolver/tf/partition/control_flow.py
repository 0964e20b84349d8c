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
from slurm_resolver.tf.partition.inlining import CALLS
from slurm_resolver.tf.partition.lists import WholeListsError, join
from slurm_resolver.tf.partition.operation import Operation
from slurm_resolver.tf.partition.row_loops import STACKS, row_loop
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


def condition(planner: Plan, op: Operation, given: Values) -> Split:
    """If and Case: what all branches return is converted into one value."""
    functions = op.attribute("branches") or map(op.attribute, ("then_branch", "else_branch"))
    plans = []
    for branch in map(op.node.function, functions):
        alike = zip(op.node.inputs[1:], branch.inputs)
        plans.append(planner.inner(branch, given[1:], alike))
    results = [functools.reduce(join, values) for values in zip(*(one.outputs for one in plans))]
    for plan in plans:
        _check_rows(plan, plan.flat.outputs, results)
        plan.wanted = results
    for number, first, *others in zip(
        op.node.outputs, *(map(plan.sizes.known, plan.flat.outputs) for plan in plans)
    ):
        if all(other == first for other in others):
            planner.sizes.bind(number, *first)

    def make(emission: Emission, inputs: Tensors) -> Tensors:
        test, *tensors = inputs
        # A branch has one more result, since it may have no other.
        branches = [
            lambda plan=plan: [tf.constant(0), *emission.inside(plan, tensors)] for plan in plans
        ]
        if op.kind.endswith("If"):
            found = tf.cond(tf.cast(test, tf.bool), *branches)
        else:
            found = tf.switch_case(test, branches)
        return list(found[1:])

    return op.split(results, SAME, *given[1:], make=make)


def loop(planner: Plan, op: Operation, given: Values) -> Split:
    """While: its variables are the same kind of value in each round."""
    if not STACKS.isdisjoint(given):
        return row_loop(op)
    body = op.function("body")
    values = list(given)
    # Variables whose sizes no round changes: their numbers before the loop, and their places.
    alike = list(zip(op.node.inputs, body.inputs))
    # Each round widens what one of the variables is; only lists in lists have no widest value.
    for _ in range(8 * len(values) + 1):
        plan = planner.inner(body, values, alike)
        kept = [
            (number, place)
            for number, place in alike
            if planner.sizes.known(number) == plan.sizes.known(plan.flat.outputs[place])
        ]
        joined = list(map(join, values, plan.outputs))
        # A round may add elements to a list that are only known when all else is.
        others = [old if old.is_list else new for old, new in zip(values, joined)]
        after = joined if others == values else others
        if after == values and kept == alike:
            break
        alike = kept
        values = after
    else:
        raise NotByPartError("a loop with another value in each round")
    _check_rows(planner, op.node.inputs, values)
    _check_rows(plan, plan.flat.outputs, values)
    plan.wanted = values
    test = planner.inner(op.function("cond"), values, alike, [SAME])
    for number, place in alike:
        planner.sizes.bind(op.node.outputs[place], *planner.sizes.known(number))
    # All replicas put tensors together, and draw numbers from a sequence, in the same order.
    kinds = {node.kind for one in (plan, test) for node in one.flat.nodes}
    is_ordered = plan.levels or test.levels or not kinds.isdisjoint(RANDOM.union(CONTROL_FLOW))

    def make(emission: Emission, inputs: Tensors) -> Tensors:
        return list(
            tf.while_loop(
                lambda *state: emission.inside(test, state)[0],
                lambda *state: emission.inside(plan, state),
                inputs,
                list(map(shape_of_part, op.traced.outputs, values)),
                parallel_iterations=1 if is_ordered else op.attribute("parallel_iterations"),
            )
        )

    return op.split(values, *values, make=make)


def _check_rows(planner: Plan, numbers: TensorNumbers, wanted: Values) -> None:
    """Raises NotByPartError if a tensor that has no rows should be divided."""
    for number, want in zip(numbers, wanted):
        if (
            want.has_rows
            and planner.values[number] == SAME
            and not is_count(planner.sizes.size(number, want.axis), want)
        ):
            raise NotByPartError("a tensor without rows becomes one with rows")


def statistics(planner: Plan, op: Operation, given: Values) -> Split:
    """A function that each replica computes of its own rows, as if they were the whole batch.

    What enters its gradient as a SUM is the gradient of a replica's own statistic. If this is
    differentiated again, the statistics are those of all rows.
    """
    flat = op.function("f")
    is_whole = all(value == SAME for value in given)
    plan = planner.inner(
        flat,
        given if is_whole else op.values,
        zip(op.node.inputs, flat.inputs),
        inside=False,
    )
    for result, number in zip(op.node.outputs, flat.outputs):
        planner.sizes.bind(result, plan.sizes.shape(number))
    results = list(plan.outputs)
    for place, number in enumerate(flat.outputs):
        if is_whole:
            results[place] = SAME
        elif not (results[place].has_rows or results[place].is_list):
            results[place] = LOCAL
            if not flat.tensors[number].shape.is_fully_defined():
                raise NotByPartError("statistics whose size depends on the rows")
    if LOCAL in results and (SUM in op.raw or LOCAL in op.raw):
        raise WholeListsError
    return op.split(
        results,
        *given,
        make=lambda emission, inputs: emission.as_traced(flat, inputs),
    )


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
