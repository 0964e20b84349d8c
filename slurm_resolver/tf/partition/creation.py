"""Creates an operation as it was traced, with other inputs."""

from __future__ import annotations

import inspect
from collections.abc import Sequence
from typing import Any

import tensorflow as tf

# Without its check for deprecated arguments, which takes a third of the time.
_create = inspect.unwrap(tf.Graph.create_op)


def create(operation: Any, inputs: Sequence[Any]) -> list[Any]:
    """Creates an operation in the graph that is being built, and returns its outputs.

    Args:
        operation: that was traced. Its name is kept, so that errors at run time tell it.
    """
    # No attribute of an operation's definition begins with an underscore. Those that do are
    # TensorFlow's notes about the traced graph, such as its shapes.
    attributes = {
        name: value for name, value in operation.node_def.attr.items() if not name.startswith("_")
    }
    made = _create(
        tf.compat.v1.get_default_graph(),
        operation.type,
        [tf.convert_to_tensor(one) for one in inputs],
        [output.dtype for output in operation.outputs],
        name=operation.name.lstrip("_"),
        attrs=attributes,
    )
    return list(made.outputs)
