"""Functions as graphs; a batch like the last one needs no search for its graph.

TensorFlow looks for the graph in each call, by the types of all arguments. For a batch with labels
and fingerprints, that takes longer than the rest of the call.
"""

from __future__ import annotations

import contextlib
from typing import Any

import tensorflow as tf
from tensorflow.types.experimental import PolymorphicFunction

from slurm_resolver.tf import private_names
from slurm_resolver.tf.keras.sharing import Structure, type_of
from slurm_resolver.tf.private_names import Method


def compiled(function: Method) -> PolymorphicFunction:
    """Compiles a function into a graph."""
    function = tf.autograph.experimental.do_not_convert(function)
    return tf.function(function, reduce_retracing=True)


class CompiledStep:
    """The graphs of a function of a batch."""

    def __init__(self, function: Method) -> None:
        self._function = compiled(function)
        self._spec: Structure = None  # the types in the last batch
        self._types: list[Any] = []  # of its tensors

    def write(self, spec: Structure) -> None:
        """Writes the graph of a batch of these types."""
        self._function.get_concrete_function(spec)

    def __call__(self, batch: Structure) -> Structure:
        """Returns the results of a batch."""
        values = tf.nest.flatten(batch, expand_composites=True)
        types = [value if value is None else (value.dtype, value.shape) for value in values]
        if types != self._types or not self._has_structure_of(batch):
            self._graph = self._function.get_concrete_function(batch)
            self._run = private_names.CALL_FLAT.of(self._graph, None)
            self._spec = tf.nest.map_structure(type_of, batch)
            self._types = types
        if self._run is None:
            return self._function(batch)
        tensors = [value for value in values if value is not None]
        return self._run(tensors, self._graph.captured_inputs)

    def _has_structure_of(self, batch: Structure) -> bool:
        with contextlib.suppress(TypeError, ValueError):
            tf.nest.assert_same_structure(self._spec, batch, expand_composites=True)
            return True
        return False
