"""The functions that the operations of a graph call."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import tensorflow as tf

from slurm_resolver.tf.partition.inlining import function_graph


def with_called(operations: Iterable[tf.Operation]) -> Iterator[tf.Operation]:
    """Yields operations, and those in the functions that they call, such as datasets and branches.

    The order is the same in all workers, which that of the attributes is not.

    Raises:
        PlanError: if a function is not known.
    """
    for operation in operations:
        yield operation
        for _, value in sorted(operation.node_def.attr.items()):
            for function in (value.func, *value.list.func):
                if function.name:  # empty for an attribute of another type
                    called = function_graph(operation, function.name)
                    yield from with_called(called.get_operations())
