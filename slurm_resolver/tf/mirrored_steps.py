"""Keras 3's train and test functions for the workers of a `MultiWorkerMirroredStrategy`.

Keras' own function wraps what a step returns into an Optional, asks it whether there is a value,
and takes that out: two operations outside the graph, for each of which Python and TensorFlow take
longer than for all else that `fit` does between two steps. An Optional is needed for several steps
in one execution; a single step that finds no more data raises OutOfRangeError, which `fit` expects.
"""

from __future__ import annotations

from typing import Any, Callable

import tensorflow as tf

from slurm_resolver.tf.keras_calls import without_optionals

Step = Callable[..., Any]


class StepFunction:
    """A model's `train_function` or `test_function`, which does what Keras' own does."""

    def __init__(self, model: Any, step: Step, original: Step) -> None:
        """Prepares.

        Args:
            model: one of Keras 3, of a strategy of several workers.
            step: its `train_step` or `test_step`.
            original: Keras' own function, for all but single steps of distributed data.
        """
        self._model = model
        self._step = step
        self._original = original
        self._on_iterator = tf.function(
            tf.autograph.experimental.do_not_convert(self._next_step), reduce_retracing=True
        )

    def __call__(self, iterator: Any) -> Any:
        """Returns the logs of the next step, or of the next `steps_per_execution`.

        Raises:
            StopIteration, tensorflow.errors.OutOfRangeError: where there are no more data.
        """
        model = self._model
        single = model.steps_per_execution == 1 and not (model.run_eagerly or model.jit_compile)
        if single and isinstance(iterator, tf.distribute.DistributedIterator):
            return self._on_iterator(iterator)
        return self._original(iterator)

    def _next_step(self, iterator: Any) -> Any:
        strategy = self._model.distribute_strategy
        batch = without_optionals(iterator.get_next())
        outputs = strategy.run(self._step, args=(batch,))
        return tf.nest.map_structure(
            lambda value: None if value is None else strategy.reduce("MEAN", value, axis=0), outputs
        )
