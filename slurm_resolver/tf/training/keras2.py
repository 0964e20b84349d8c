"""The parts of Keras 2 (tf_keras) that `BackupAndResume` reads and sets."""

from __future__ import annotations

from typing import Any, Callable, Dict, List, Optional, Tuple

import tensorflow as tf

from slurm_resolver.tf.training.checkpoint import batch_size_of


class Keras2:
    """A model of Keras 2 in its `fit`; the methods are those of `Keras3`."""

    iterators = 0

    def __init__(self, model: Any, fit: Dict[str, Any]) -> None:
        """Takes the variables of Keras' `fit`, and builds the optimizer.

        A variable is saved and restored only if it exists.
        """
        self._model = model
        self._data: Any = fit["data_handler"]
        if model.built and not getattr(model.optimizer, "_built", False):
            model.optimizer.build(model.trainable_variables)

    @staticmethod
    def made(model: Any) -> bool:
        """Whether the model is one of Keras 2."""
        return hasattr(model, "_maybe_load_initial_counters_from_ckpt")

    def untracked(self) -> List[tf.Variable]:
        """Returns the variables that a `tf.train.Checkpoint` of the model leaves out: none."""
        return []

    def batch_size(self) -> int:
        """Returns how many samples a global batch has; 0 if that is not known."""
        return batch_size_of(self._data._dataset)

    def begin_at(self, epoch: int, iterators: int, steps: Optional[int]) -> None:
        """Makes `fit` begin with this epoch.

        If Keras does not know how many steps the data has, it tries one more, which counts in the
        optimizer.
        """
        self._model._training_state = _Start(epoch)
        if self._data._inferred_steps is None:
            self._data._inferred_steps = steps

    def steps(self) -> Optional[int]:
        """Returns how many steps an epoch has; None until the data has ended once."""
        steps: Optional[int] = self._data._inferred_steps
        return steps

    def end(self) -> None:
        """Restores what `fit` reads of the model, and releases the data."""
        self._model._training_state = self._data = None

    def trace(self, function: Callable[[Any], Any], iterator: Any) -> None:
        """Makes the variables of the metrics, for which Keras 2 needs to trace its first step."""
        if isinstance(function, tf.types.experimental.PolymorphicFunction):
            function.get_concrete_function(iterator)

    def metrics(self) -> List[tf.Variable]:
        """Returns the variables of the metrics of this epoch."""
        return [variable for metric in self._model.metrics for variable in metric.variables]

    def count(self, steps: int) -> None:
        """Counts steps of an iterator of all epochs: Keras 2 does not."""

    def keeps(self, iterator: Any) -> bool:
        """Whether the next epoch uses this iterator too."""
        return not self._data._adapter.should_recreate_iterator()

    def executed(self) -> int:
        """Returns how many steps a call of the train function executes at least."""
        return 1

    def flush(self, callbacks: Any) -> None:
        """Waits for callbacks that run beside the training: Keras 2 has none."""


class _Start:
    """Takes the place of Keras' own backup, which `fit` asks for the epoch to begin with."""

    def __init__(self, epoch: int) -> None:
        self._epoch = epoch

    def maybe_load_initial_counters_from_ckpt(
        self, steps_per_epoch: Any, initial_epoch: int, mode: Any = None
    ) -> Tuple[int, int]:
        """Returns the epoch and the step within it."""
        return max(self._epoch, initial_epoch), 0
