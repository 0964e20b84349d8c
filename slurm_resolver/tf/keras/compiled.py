"""Functions as graphs; a batch like the last one needs no search for its graph.

TensorFlow looks for the graph in each call, by the types of all arguments. For a batch with labels
and fingerprints, that takes longer than the rest of the call.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Callable

import tensorflow as tf
from tensorflow.types.experimental import ConcreteFunction, PolymorphicFunction

from slurm_resolver.tf import private_names
from slurm_resolver.tf.keras.sharing import Structure, type_of
from slurm_resolver.tf.private_names import Method


def compiled(function: Method) -> PolymorphicFunction:
    """Compiles a function into a graph."""
    function = tf.autograph.experimental.do_not_convert(function)
    return tf.function(function, reduce_retracing=True)


class CompiledStep:
    """Runs a graph on each batch.

    Args:
        find: returns the graph for a batch.
    """

    _types: Sequence[object] = ()  # of the tensors in the last batch
    _last: Structure = None

    def __init__(self, find: Callable[[Structure], ConcreteFunction]) -> None:
        self._find = find

    def __call__(self, batch: Structure) -> Structure:
        """Returns the results of a batch."""
        values = tf.nest.flatten(batch, expand_composites=True)
        types = [value if value is None else (value.dtype, value.shape) for value in values]
        try:
            tf.nest.assert_same_structure(self._last, batch, expand_composites=True)
            is_like_last = types == self._types
        except (TypeError, ValueError):
            is_like_last = False
        if not is_like_last:
            self._graph = self._find(batch)
            self._run = private_names.CALL_FLAT.of(self._graph, None)
            self._last = tf.nest.map_structure(type_of, batch)
            self._types = types
        if self._run is None:
            return self._graph(batch)
        tensors = [value for value in values if value is not None]
        return self._run(tensors, self._graph.captured_inputs)
