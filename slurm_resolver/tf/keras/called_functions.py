"""The functions that the operations of a graph call."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import tensorflow as tf

from slurm_resolver.tf import private_names


def graph_of_function(graph: tf.Graph, name: str) -> tf.Graph | None:
    """Returns the graph of a function that a graph calls; None if TensorFlow has none."""
    return getattr(private_names.FUNCTION_OF_GRAPH.of(graph)(name), "graph", None)


def with_called(operations: Iterable[tf.Operation]) -> Iterator[tf.Operation]:
    """Yields operations, and those in the functions that they call, such as datasets and branches.

    Raises:
        LookupError: with the name of a function whose graph is not known.
    """
    for operation in operations:
        yield operation
        for value in operation.node_def.attr.values():
            for function in (value.func, *value.list.func):
                if function.name:  # empty for an attribute of another type
                    called = graph_of_function(operation.graph, function.name)
                    if called is None:
                        raise LookupError(function.name)
                    yield from with_called(called.get_operations())
