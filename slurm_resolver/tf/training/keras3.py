"""The parts of Keras 3 that `BackupAndResume` reads and sets."""

from __future__ import annotations

import contextlib
from typing import Any, Callable, Dict, List, Optional

import tensorflow as tf

from slurm_resolver.errors import ResumeError
from slurm_resolver.preflight.keras_version import check_keras
from slurm_resolver.tf.keras.sharing import Share
from slurm_resolver.tf.training.checkpoint import batch_size_of

_GENERATED = ("GeneratorDataAdapter", "PyDatasetAdapter")


class Keras3:
    """A model of Keras 3 in its `fit`.

    Attributes:
        iterators: how many iterators over the data `fit` has made.
    """

    def __init__(self, model: Any, fit: Dict[str, Any]) -> None:
        """Takes the variables of Keras' `fit`, and builds what is not yet built.

        Without a strategy, Keras builds in the first step, too late for a restore.
        """
        check_keras()
        self._model = model
        data: Any = fit.get("epoch_iterator")
        self._data = data
        self.iterators = 0
        if not hasattr(data, "_get_iterator"):
            raise ResumeError(
                "the fit of this Keras has no epoch_iterator, where BackupAndResume expects the "
                "data: it knows Keras 3.10 to 3.15. Install one of these, or use ResumableLoop."
            )
        make = data._get_iterator

        def count() -> Any:
            self.iterators += 1
            return make()

        data._get_iterator = count
        problem: Any = "Keras could not infer its inputs' shapes"
        spec = data._distributed_dataset.element_spec
        with model.distribute_strategy.scope():
            try:
                model._symbolic_build(data_batch=spec.batch if isinstance(spec, Share) else spec)
            except Exception as error:  # whatever the model's own code raises
                problem = error
            if not model.built:
                raise ResumeError(
                    f"the model {model.name!r} is not built, so that nothing can be restored into "
                    f"it ({problem}): start it with keras.Input, or call it on a batch before fit."
                )
            if model.optimizer is not None and not model.optimizer.built:
                model.optimizer.build(model.trainable_variables)

    @staticmethod
    def made(model: Any) -> bool:
        """Whether the model is one of Keras 3."""
        return hasattr(model, "_initial_epoch") and hasattr(model, "metrics_variables")

    def untracked(self) -> List[tf.Variable]:
        """Returns the variables that a `tf.train.Checkpoint` of the model leaves out.

        These are the states of the model's random generators, which draw the masks of dropout.
        """
        model = self._model
        variables = [*model.variables, *(model.optimizer.variables if model.optimizer else [])]
        tracked = {id(part) for part in tf.train.TrackableView(model).descendants()}
        tracked.update(map(id, model.metrics_variables))
        return [
            variable.value
            for variable in variables
            if tracked.isdisjoint((id(variable), id(variable.value)))
        ]

    def batch_size(self) -> int:
        """Returns how many samples a global batch has; 0 if that is not known."""
        adapter = self._data.data_adapter
        if type(adapter).__name__ == "ArrayDataAdapter":
            return int(adapter.batch_size)
        return batch_size_of(self._data._distributed_dataset)

    def begin_at(self, epoch: int, iterators: int, steps: Optional[int]) -> None:
        """Makes `fit` begin with this epoch, and with the iterator of this number.

        A dataset that is shuffled anew draws the next order for each iterator. A Python generator
        has no such orders, and must not be started for nothing.
        """
        self._model._initial_epoch = epoch
        if self._data._num_batches is None:
            self._data._num_batches = steps
        if type(self._data.data_adapter).__name__ not in _GENERATED:
            while self.iterators < iterators - 1:
                iter(self._data._get_iterator())

    def steps(self) -> Optional[int]:
        """Returns how many steps an epoch has; None until the data has ended once."""
        steps: Optional[int] = self._data._num_batches
        return steps

    def end(self) -> None:
        """Restores what `fit` reads of the model, and releases the data."""
        self._model._initial_epoch = None
        del self._data._get_iterator
        self._data = None

    def trace(self, function: Callable[[Any], Any], iterator: Any) -> None:
        """Makes the variables of the metrics; in Keras 3 they exist already."""

    def metrics(self) -> List[tf.Variable]:
        """Returns the variables of the metrics of this epoch."""
        return [variable.value for variable in self._model.metrics_variables]

    def count(self, steps: int) -> None:
        """Counts steps of an iterator of all epochs, which Keras renews after its end."""
        self._data._steps_seen += steps

    def keeps(self, iterator: Any) -> bool:
        """Whether the next epoch uses this iterator too."""
        data = self._data
        return data.steps_per_epoch is not None and data._current_iterator is iterator

    def executed(self) -> int:
        """Returns how many steps a call of the train function executes."""
        return int(self._model.steps_per_execution)

    def flush(self, callbacks: Any) -> None:
        """Waits until the callbacks that run beside the training have seen the last step."""
        with contextlib.suppress(AttributeError):
            callbacks._flush_futures()
