"""The functions that the operations of a graph call."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import tensorflow as tf

from slurm_resolver.tf.partition.inlining import function_graph


def with_called(operations: Iterable[tf.Operation]) -> Iterator[tf.Operation]:
    """Yields operations, and those in the functions that they call, such as datasets and branches.

    Raises:
        PlanError: if a function is not known.
    """
    for operation in operations:
        yield operation
        for value in operation.node_def.attr.values():
            for function in (value.func, *value.list.func):
                if function.name:  # empty for an attribute of another type
                    called = function_graph(operation, function.name)
                    yield from with_called(called.get_operations())
