"""Plans a traced step; `emission` writes it for a replica.

plan = plan_step(traced)
outputs = Emission(plan, rows, inputs, add_up).all()
"""

from __future__ import annotations

import contextlib
from collections.abc import Sequence

import tensorflow as tf
from tensorflow.types.experimental import ConcreteFunction

from slurm_resolver.tf.partition.emission import Plan
from slurm_resolver.tf.partition.inlining import Flat
from slurm_resolver.tf.partition.lists import WholeListsError
from slurm_resolver.tf.partition.plan import Planner
from slurm_resolver.tf.partition.scratch import Scratch
from slurm_resolver.tf.partition.values import (
    SAME,
    NotByPartError,
    PlanError,
    Values,
    Wants,
    rows,
)
from slurm_resolver.tf.private_names import Method


def plan_step(
    traced: ConcreteFunction,
    *,
    multiples: Sequence[int] = (),
    sends_inside: bool = False,
) -> Plan:
    """Returns the plan of a step, with whole outputs.

    Args:
        traced: the step of one process, a ConcreteFunction that was traced without a strategy, for
            an unknown number of rows. Each argument that is a tensor has its rows along axis 0;
            scalars are the same in all replicas.
        multiples: how many times N rows each argument has that is no scalar; by default, once.
        sends_inside: whether tensors can be put together in conditions and loops.

    Raises:
        PlanError: if the step cannot be divided.
    """
    graph = traced.graph
    captured = len(traced.captured_inputs)
    outer = iter(multiples)
    values = [
        rows(outer=next(outer, 1)) if tensor.shape.rank != 0 else SAME
        for tensor in graph.inputs[: len(graph.inputs) - captured]
    ]
    return plan_graph(
        graph,
        [*values, *[SAME] * captured],
        sends_inside=sends_inside,
    )


def plan_whole(traced: ConcreteFunction) -> Plan:
    """Returns the plan of a step that each replica computes on all rows.

    What only one replica may compute, such as unseeded random numbers, is still sent to the others.
    """
    return plan_graph(traced.graph, [SAME] * len(traced.graph.inputs))


def of_own_rows(function: Method) -> tf.types.experimental.PolymorphicFunction:
    """Returns a function that a replica computes of its own rows, as if they were the whole batch.

    Its results are the mean of all replicas' where they are needed whole. So Keras documents
    BatchNormalization with `synchronized=False`, whose `_moments` this is for.
    """

    def computed_of_own_rows(*arguments: object) -> object:
        return function(*arguments)

    return tf.function(computed_of_own_rows, autograph=False)


def plan_graph(
    graph: tf.Graph,
    values: Values,
    wanted: Wants | None = None,
    sends_inside: bool = False,
) -> Plan:
    """Returns the plan of a graph whose inputs are known; see `plan_step`.

    Args:
        wanted: what the outputs should be; by default, all of them are whole.
    """
    flat = Flat(graph)
    wanted = wanted or [SAME] * len(flat.outputs)
    try:
        for whole in (False, True):
            with contextlib.suppress(WholeListsError):
                return Planner(
                    flat,
                    values,
                    Scratch(),
                    whole,
                    sends_inside,
                ).run(wanted)
    except NotByPartError as error:
        raise PlanError(str(error)) from None
    raise PlanError("a list has rows, and cannot be whole")
