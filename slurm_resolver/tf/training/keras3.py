"""What `BackupAndResume` has to know of Keras 3."""

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

    def __init__(self, model: Any) -> None:
        check_keras()
        self._model = model
        self._data: Any = None
        self.iterators = 0

    @staticmethod
    def made(model: Any) -> bool:
        """Whether the model is one of Keras 3."""
        return hasattr(model, "_initial_epoch") and hasattr(model, "metrics_variables")

    def look(self, fit: Dict[str, Any]) -> None:
        """Takes what it needs of the variables of Keras' `fit`, and builds what is not yet built.

        Without a strategy Keras builds in the first step, and what is not there is not restored.
        """
        data: Any = fit.get("epoch_iterator")
        if not hasattr(data, "_get_iterator"):
            raise ResumeError(
                "the fit of this Keras has no epoch_iterator, where BackupAndResume expects the "
                "data: it knows Keras 3.10 to 3.15. Install one of these, or use ResumableLoop."
            )
        self._data = data
        make = data._get_iterator

        def count() -> Any:
            self.iterators += 1
            return make()

        data._get_iterator = count
        model = self._model
        problem: Any = "Keras could not tell its inputs' shapes"
        spec = data._distributed_dataset.element_spec
        try:
            with model.distribute_strategy.scope():
                model._symbolic_build(data_batch=spec.batch if isinstance(spec, Share) else spec)
        except Exception as error:  # whatever the model's own code raises
            problem = error
        if not model.built:
            raise ResumeError(
                f"the model {model.name!r} is not built, so that nothing can be restored into it "
                f"({problem}): begin it with keras.Input, or call it on a batch before fit."
            )
        if model.optimizer is not None and not model.optimizer.built:
            with model.distribute_strategy.scope():
                model.optimizer.build(model.trainable_variables)

    def untracked(self) -> List[tf.Variable]:
        """Returns the variables that a `tf.train.Checkpoint` of the model leaves out.

        These are the states of the model's random generators, which draw the masks of dropout.
        """
        model = self._model
        variables = [*model.variables, *(model.optimizer.variables if model.optimizer else [])]
        tracked = {id(part) for part in tf.train.TrackableView(model).descendants()}
        metrics = {id(variable) for variable in model.metrics_variables}
        return [
            variable.value
            for variable in variables
            if not {id(variable), id(variable.value)} & (tracked | metrics)
        ]

    def batch_size(self) -> int:
        """Returns how many samples a global batch has; 0 if that is not known."""
        adapter = self._data.data_adapter
        if type(adapter).__name__ == "ArrayDataAdapter":
            return int(adapter.batch_size)
        return batch_size_of(self._data._distributed_dataset)

    def begin_at(self, epoch: int, iterators: int, steps: Optional[int]) -> None:
        """Lets `fit` begin with this epoch, for which it makes the iterator of this number.

        A dataset that is shuffled anew for each iterator draws the next order whenever one is made.
        Not so Python's generators, which must not be begun for nothing.
        """
        self._model._initial_epoch = epoch
        if self._data._num_batches is None:
            self._data._num_batches = steps
        if type(self._data.data_adapter).__name__ in _GENERATED:
            return
        while self.iterators < iterators - 1:
            iter(self._data._get_iterator())

    def steps(self) -> Optional[int]:
        """Returns how many steps the data has, once that is known: it may have to end first."""
        steps: Optional[int] = self._data._num_batches
        return steps

    def end(self) -> None:
        """Lets the next `fit` begin where it is told to, and lets go of the data."""
        self._model._initial_epoch = None
        del self._data._get_iterator
        self._data = None

    def trace(self, function: Callable[[Any], Any], iterator: Any) -> None:
        """Makes the variables of the metrics; they have been made before."""

    def metrics(self) -> List[tf.Variable]:
        """Returns the variables that the metrics of this epoch are made of."""
        return [variable.value for variable in self._model.metrics_variables]

    def count(self, steps: int) -> None:
        """Counts steps of an iterator that other epochs have begun: it is renewed after its end."""
        self._data._steps_seen += steps

    def goes_on(self, iterator: Any) -> bool:
        """Whether the next epoch goes on with this iterator, rather than with a new one."""
        data = self._data
        return data.steps_per_epoch is not None and data._current_iterator is iterator

    def executed(self) -> int:
        """Returns how many steps a call of the train function takes."""
        return int(self._model.steps_per_execution)

    def flush(self, callbacks: Any) -> None:
        """Waits until the callbacks that run beside the training have seen the last step."""
        with contextlib.suppress(AttributeError):
            callbacks._flush_futures()
