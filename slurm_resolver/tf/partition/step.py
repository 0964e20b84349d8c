"""Plans a traced step, and writes it for a replica.

plan = plan_step(traced)
outputs = write_step(plan, rows, inputs, add_up)
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Callable

import tensorflow as tf

from slurm_resolver.tf.partition.collectives import OwnRows
from slurm_resolver.tf.partition.control_flow import CONTROL_FLOW
from slurm_resolver.tf.partition.emission import AddUp, Emission
from slurm_resolver.tf.partition.inlining import Flat, Node
from slurm_resolver.tf.partition.plan import Plan, Planner, WholeListsError
from slurm_resolver.tf.partition.values import SAME, PlanError, Value, Want, rows


def plan_step(
    traced: Any,
    wanted: Sequence[Want] | None = None,
    *,
    sends_inside: bool = False,
) -> Plan:
    """Returns the plan of a step.

    Args:
        traced: the step of one process, a ConcreteFunction that was traced without a strategy, for
            an unknown number of rows. Each argument that is a tensor has its rows along axis 0;
            scalars are the same in all replicas.
        wanted: what the outputs should be; by default, all of them are whole.
        sends_inside: whether tensors can be put together in conditions and loops.

    Raises:
        PlanError: if the step cannot be divided.
    """
    for spec in tf.nest.flatten(traced.structured_input_signature):
        if isinstance(spec, tf.TypeSpec) and not isinstance(spec, tf.TensorSpec):
            raise PlanError(f"the batch has a {spec.value_type.__name__}")
    graph = traced.graph
    captured = len(traced.captured_inputs)
    arguments = graph.inputs[: len(graph.inputs) - captured]
    values = [rows() if tensor.shape.rank != 0 else SAME for tensor in arguments]
    return plan_graph(
        graph,
        [*values, *[SAME] * captured],
        wanted,
        sends_inside,
    )


def plan_whole(traced: Any) -> Plan:
    """Returns the plan of a step that each replica computes on all rows.

    What only one replica may compute, such as unseeded random numbers, is still sent to the others.
    """
    return plan_graph(traced.graph, [SAME] * len(traced.graph.inputs))


def of_own_rows(function: Callable[..., Any]) -> Any:
    """Returns a function that a replica computes of its own rows, as if they were the whole batch.

    Its results are the mean of all replicas' where they are needed whole. So Keras documents
    BatchNormalization with `synchronized=False`, whose `_moments` this is for.
    """

    def computed_of_own_rows(*arguments: Any) -> Any:
        return function(*arguments)

    return tf.function(computed_of_own_rows, autograph=False)


def plan_graph(
    graph: Any,
    values: Sequence[Value],
    wanted: Sequence[Want] | None = None,
    sends_inside: bool = False,
) -> Plan:
    """Returns the plan of a graph whose inputs are known; see `plan_step`."""
    flat = Flat(graph)
    if wanted is None:
        wanted = [SAME] * len(flat.outputs)
    whole: set[Node] = set()
    while True:
        try:
            return Planner(
                flat,
                values,
                CONTROL_FLOW,
                whole,
                sends_inside=sends_inside,
            ).run(wanted)
        except WholeListsError as error:
            if error.nodes <= whole:
                names = ", ".join(sorted(node.operation.name for node in error.nodes))
                raise PlanError(f"the lists of {names} have rows, and cannot be whole") from None
            whole |= error.nodes


def write_step(
    plan: Plan,
    own: OwnRows,
    inputs: Sequence[Any],
    add_up: AddUp,
    add_up_inside: AddUp | None = None,
) -> list[Any]:
    """Writes a step for a replica, and returns its outputs.

    Args:
        plan: of the step.
        own: the rows that the replica has.
        inputs: its rows of the arguments, and what the step captures.
        add_up: returns the sums of vectors over all replicas.
        add_up_inside: the same in conditions and loops; see `sends_inside`.
    """
    written = Emission(
        plan,
        own,
        inputs,
        add_up_inside,
    )
    return written.all(add_up)
