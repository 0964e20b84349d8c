"""A graph in which TensorFlow infers shapes and numbers; nothing in it is computed by a step.

Equal operations of equal inputs are made once. So the layers of a model that are alike cost what
one of them costs, and what does not depend on the number of rows is the same tensor for any number.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from slurm_resolver.tf import private_names
from slurm_resolver.tf.partition.creation import Creator


class Scratch:
    """A graph of operations with known inputs, or inputs of which the shape is known."""

    def __init__(self) -> None:
        self._graph = tf.Graph()
        self._create = Creator().create
        self._constants: dict[Any, Any] = {}
        self._placeholders: dict[Any, Any] = {}
        self._numbers: dict[Any, Any] = {}

    def constant(self, numbers: Any, dtype: Any) -> Any:
        """Returns a tensor of these numbers."""
        array = np.asarray(numbers, dtype.as_numpy_dtype)
        key = dtype, array.shape, array.tobytes()
        if key not in self._constants:
            with self._graph.as_default():
                tensor = tf.constant(array, dtype)
            self._constants[key] = tensor
            self._numbers[tensor.ref()] = array
        return self._constants[key]

    def placeholder(self, dtype: Any, shape: Any) -> Any:
        """Returns a tensor of unknown numbers."""
        key = dtype, str(tf.TensorShape(shape))
        if key not in self._placeholders:
            with self._graph.as_default():
                self._placeholders[key] = tf.compat.v1.placeholder(dtype, shape)
        return self._placeholders[key]

    def copy(self, operation: Any, inputs: Sequence[Any]) -> list[Any]:
        """Returns the results of an operation that was traced.

        Raises:
            ValueError, TypeError or tf.errors.OpError: if it is impossible with these inputs.
        """
        with self._graph.as_default():
            return self._create(operation, inputs)

    def numbers(self, tensor: Any) -> Any:
        """Returns the numbers of a tensor; None if they are unknown."""
        key = tensor.ref()
        if key not in self._numbers:
            value = tf.get_static_value(tensor)
            if value is None and tensor.op.type != "Placeholder" and tensor.dtype.is_integer:
                value = private_names.EVALUATE_CONSTANT.get()(tensor)
            self._numbers[key] = value
        return self._numbers[key]
