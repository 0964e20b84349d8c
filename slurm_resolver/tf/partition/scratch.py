"""A graph in which TensorFlow infers shapes and numbers; nothing in it is computed by a step.

Equal operations of equal inputs are made once. So the layers of a model that are alike cost what
one of them costs, and what does not depend on the number of rows is the same tensor for any number.
"""

from __future__ import annotations

import contextlib
from collections.abc import Hashable, Sequence
from typing import Any, Callable

import numpy as np
import numpy.typing as npt
import tensorflow as tf

from slurm_resolver.tf import private_names
from slurm_resolver.tf.partition.creation import attributes_of, create
from slurm_resolver.tf.partition.values import Numbers, T, Tensors


class Scratch:
    """A graph of operations with known inputs, or inputs of which the shape is known."""

    def __init__(self) -> None:
        self._graph = tf.Graph()
        self._made: dict[Hashable, Any] = {}

    def _once(self, make: Callable[[], T], *key: Hashable) -> T:
        """Returns what is made in the graph for a key, which is made for the first call only."""
        if key not in self._made:
            with self._graph.as_default():
                self._made[key] = make()
        found: T = self._made[key]
        return found

    def constant(self, numbers: npt.ArrayLike, dtype: tf.DType) -> tf.Tensor:
        """Returns a tensor of these numbers."""
        array = np.asarray(numbers, dtype.as_numpy_dtype)
        return self._once(lambda: tf.constant(array, dtype), dtype, array.shape, array.tobytes())

    def placeholder(self, dtype: tf.DType, shape: Sequence[int | None]) -> tf.Tensor:
        """Returns a tensor of unknown numbers."""
        return self._once(
            lambda: tf.compat.v1.placeholder(dtype, shape), dtype, tf.TensorShape(shape)
        )

    def copy(self, operation: tf.Operation, inputs: Tensors) -> Tensors:
        """Returns the results of an operation that was traced.

        Raises:
            ValueError, TypeError or tf.errors.OpError: if it is impossible with these inputs.
        """

        def make() -> Tensors:
            if operation.type == "ShapeN":  # of which TensorFlow does not tell the numbers
                return [tf.shape(one, operation.outputs[0].dtype) for one in inputs]
            return create(operation, inputs)

        attributes = attributes_of(operation).items()
        return self._once(
            make,
            operation.type,
            tuple(one.ref() for one in inputs),
            frozenset((name, value.SerializeToString()) for name, value in attributes),
        )

    def numbers(self, tensor: tf.Tensor) -> Numbers | None:
        """Returns the numbers of a tensor; None if they are unknown."""

        def find() -> Numbers | None:
            with contextlib.suppress(OverflowError):  # the size of an axis is no int32
                value: Numbers | None = tf.get_static_value(tensor)
                if value is None and tensor.dtype.is_integer:
                    value = private_names.EVALUATE_CONSTANT.get()(tensor)
                return value
            return None

        return self._once(find, tensor.ref())
