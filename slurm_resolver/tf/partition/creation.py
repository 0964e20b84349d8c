"""Creates operations as they were traced, with other inputs."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from slurm_resolver.tf import private_names

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
        definition = {(name, value.SerializeToString()) for name, value in attributes.items()}
        key = (
            graph,
            operation.type,
            tuple(tensor.ref() for tensor in tensors),
            frozenset(definition),
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
        _keep_traceback(operation, made)
        outputs = list(made.outputs)
        if not operation.op_def.is_stateful:
            self._made[key] = outputs
        return outputs


def _keep_traceback(operation: Any, made: Any) -> None:
    """Lets an error of an operation show the lines of the program that made the traced one."""
    set_traceback = _set_traceback()
    if set_traceback and operation.traceback:
        lines = private_names.USER_FRAMES.of(operation.traceback)()
        # TensorFlow takes, and shows, only a copy.
        set_traceback(private_names.OPERATION_IN_C.of(made), lines[:])


@functools.cache
def _set_traceback() -> private_names.Method | None:
    """Returns TensorFlow's function; None if it lacks one of the names."""
    others = (private_names.OPERATION_IN_C, private_names.USER_FRAMES)
    is_lacking = any(name.is_missing() for name in others)
    return None if is_lacking else private_names.SET_TRACEBACK.find()
