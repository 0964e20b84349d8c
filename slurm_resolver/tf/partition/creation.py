"""Creates operations as they were traced, with other inputs."""

from __future__ import annotations

import contextlib
import functools
import inspect

import tensorflow as tf

from slurm_resolver.tf import private_names
from slurm_resolver.tf.partition.values import Tensors

# TensorFlow's method without its check for deprecated arguments, which takes a third of the time.
_create_op: private_names.Method = inspect.unwrap(tf.Graph.create_op)
_set_traceback = functools.cache(private_names.SET_TRACEBACK.find)


def attributes_of(operation: tf.Operation) -> dict[str, tf.compat.v1.AttrValue]:
    """Returns the attributes of an operation.

    No attribute of an operation's definition begins with an underscore. Those that do are
    TensorFlow's notes about the traced graph, such as its shapes.
    """
    return {
        name: value for name, value in operation.node_def.attr.items() if not name.startswith("_")
    }


def create(operation: tf.Operation, inputs: Tensors) -> Tensors:
    """Creates an operation in the graph that is being built, and returns its outputs.

    Args:
        operation: that was traced. Its name is kept, so that errors at run time tell it.
    """
    made = _create_op(
        tf.compat.v1.get_default_graph(),
        operation.type,
        [tf.convert_to_tensor(one) for one in inputs],
        [output.dtype for output in operation.outputs],
        name=operation.name.lstrip("_"),
        attrs=attributes_of(operation),
    )
    if operation.traceback:
        _keep_traceback(operation, made)
    return list(made.outputs)


def _keep_traceback(operation: tf.Operation, made: tf.Operation) -> None:
    """Lets an error of an operation show the lines of the program that made the traced one.

    It does not where TensorFlow lacks one of the names.
    """
    with contextlib.suppress(AttributeError, TypeError):
        _set_traceback()(
            private_names.OPERATION_IN_C.of(made),
            # TensorFlow takes, and shows, only a copy.
            private_names.USER_FRAMES.of(operation.traceback)()[:],
        )
