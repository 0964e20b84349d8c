"""Creates operations as they were traced, with other inputs."""

from __future__ import annotations

import inspect
from collections.abc import Sequence
from typing import Any

import tensorflow as tf

# Without its check for deprecated arguments, which takes a third of the time.
_create = inspect.unwrap(tf.Graph.create_op)


class Creator:
    """Creates operations: equal ones of equal inputs only once, if they have no state."""

    def __init__(self) -> None:
        self._made: dict[Any, list[Any]] = {}

    def create(self, operation: Any, inputs: Sequence[Any]) -> list[Any]:
        """Creates an operation in the graph that is being built, and returns its outputs.

        Args:
            operation: that was traced. Its name is kept, so that errors at run time tell it.
        """
        graph = tf.compat.v1.get_default_graph()
        tensors = [tf.convert_to_tensor(one) for one in inputs]
        # No attribute of an operation's definition begins with an underscore. Those that do are
        # TensorFlow's notes about the traced graph, such as its shapes.
        attributes = {
            name: value
            for name, value in operation.node_def.attr.items()
            if not name.startswith("_")
        }
        definition = {name: value.SerializeToString() for name, value in attributes.items()}
        key = (
            graph,
            operation.type,
            tuple(tensor.ref() for tensor in tensors),
            frozenset(definition.items()),
        )
        if key in self._made:
            return self._made[key]
        made = _create(
            graph,
            operation.type,
            tensors,
            [output.dtype for output in operation.outputs],
            name=operation.name.lstrip("_"),
            attrs=attributes,
        )
        outputs = list(made.outputs)
        if not operation.op_def.is_stateful:
            self._made[key] = outputs
        return outputs
