"""One run of Keras' `fit` that `BackupAndResume` saves and resumes, for Keras 3 and for Keras 2.

`fit` cannot begin in the middle of an epoch. It begins the epoch as usual, but until the step that
was saved, it calls no callback and does not train the model.
"""

from __future__ import annotations

import functools
from typing import Any, Callable, Dict, List, Optional

import tensorflow as tf

from slurm_resolver.errors import ResumeError
from slurm_resolver.log import warn
from slurm_resolver.preflight.keras_version import check_keras
from slurm_resolver.tf.keras.sharing import Share
from slurm_resolver.tf.training.checkpoint import Backup, batch_size_of
from slurm_resolver.tf.training.fit_state import CallbackStates, ReplicaMetrics

_HOOKS = (
    *("on_epoch_begin", "on_train_batch_begin", "on_train_batch_end"),
    *("on_test_begin", "on_test_batch_end", "on_train_end"),
)
_GENERATED = ("GeneratorDataAdapter", "PyDatasetAdapter")

Call = Callable[..., Any]


def do_nothing(*args: Any, **kwargs: Any) -> None:
    """Does nothing, for the methods that Keras calls in every callback."""


class Fit:
    """A run of Keras 3's `fit`: it replaces the model's train function and wraps the callbacks."""

    _complete = True  # `_build` makes all variables that a checkpoint may hold

    def __init__(self, callback: Any, callbacks: Any, data: Any) -> None:
        """Restores the training, and wraps. Keras is calling `on_train_begin` of the callbacks.

        `callbacks` is Keras' list of all callbacks. `data` makes the iterators over the data.
        """
        self._model = model = callback.model
        self._data = data
        self._callbacks = callbacks
        self._others = [other for other in callbacks.callbacks if other is not callback]
        self._states: Optional[CallbackStates] = None
        self._epochs = callback.params["epochs"]
        self._muted = False  # whether the current step was trained before
        self._made = 0  # iterators over the data; Keras 2 does not count them
        self._iterator: Any = None
        self._iterators = 0  # their number, including the current one
        self._logs: Any = None  # of the steps that are skipped
        self._metrics = ReplicaMetrics(model.distribute_strategy, self._metric_variables)
        self._trained_metrics: Any = None  # the training's, while a validation uses its metrics
        self._build()
        random = {str(at): variable for at, variable in enumerate(self._untracked())}
        self._backup = backup = Backup(
            model.distribute_strategy,
            {"model": model, "random": tf.train.Checkpoint(**random), **callback.state},
            *callback.options,
            complete=self._complete,
            collect=self._collect,
        )
        self._saved: Dict[str, Any] = backup.more or {}
        backup.say_start(self._epochs)
        steps = self._saved.get("steps")
        if backup.epoch < self._epochs and backup.begin_data(self._batch_size()):
            steps = None  # an epoch has another number of steps now
        self._until = backup.step  # of the epoch in which training resumes; 0 in the later ones
        if backup.restored:
            self._begin_at(backup.epoch, self._saved["iterators"])
            if getattr(data, self._steps_name) is None:
                setattr(data, self._steps_name, steps)
        for name in _HOOKS:
            hook = functools.partial(getattr(self, f"_{name}"), getattr(callbacks, name))
            setattr(callbacks, name, hook)
        # After a failed `fit`, the model still has the function of that run.
        train: Any = model.train_function
        self._train: Call = train._train if isinstance(train, Fit) else train
        model.train_function = self

    def __call__(self, iterator: Any) -> Any:
        """Trains. Only the train function gets the iterator from Keras.

        Keras makes a new iterator for each epoch, or one for all epochs with `steps_per_epoch`.
        """
        if iterator is not self._iterator:
            if self._iterator is None:
                self._catch_up(iterator)
            else:
                self._backup.drawn = 0
            self._iterator, self._iterators = iterator, self._made
        return self._logs if self._muted else self._train(iterator)

    def join(self) -> None:
        """Waits for all steps; ParameterServerStrategy only schedules them."""
        getattr(self._train, "join", do_nothing)()

    def _catch_up(self, iterator: Any) -> None:
        """Restores the metrics, and skips the batches that were trained on."""
        if self._until:
            self._make_metrics(iterator)
            if not self._metrics.assign(self._saved["metrics"]):
                warn("the metrics of this epoch start from zero: the model has other metrics now")
            self._logs = dict(self._model.get_metrics_result())
        for _ in range(self._backup.drawn):
            next(iterator, None)
        self._count(self._backup.drawn - self._until)

    def _metric_variables(self) -> List[tf.Variable]:
        variables = [variable for metric in self._model.metrics for variable in metric.variables]
        return [v if isinstance(v, tf.Variable) else v.value for v in variables]

    def _collect(self) -> Dict[str, Any]:
        """Returns what is saved besides variables; all ranks call it."""
        self.join()
        # Callbacks that run in parallel must see the last step.
        getattr(self._callbacks, "_flush_futures", do_nothing)()
        metrics = self._trained_metrics
        assert self._states is not None
        return {
            "callbacks": self._states.collect(),
            "iterators": self._iterators,
            "metrics": self._metrics.read() if metrics is None else metrics,
            "steps": getattr(self._data, self._steps_name),
            "stop": bool(self._model.stop_training),
        }

    def _on_epoch_begin(self, call: Call, epoch: int, logs: Any = None) -> None:
        """Restores the callbacks before the first epoch.

        If training resumes within that epoch, the callbacks were saved after its beginning, so they
        are restored again afterwards.
        """
        self._backup.epoch = epoch
        self._trained_metrics = None
        is_first = self._states is None
        if is_first:
            self._restore_callbacks()
        else:
            self._backup.step = self._until = 0
        call(epoch, logs)
        if is_first and self._until:
            self._restore_callbacks()
            self._backup.restore_again()  # a LearningRateScheduler has changed the rate
            self._model.stop_training = self._saved["stop"]

    def _restore_callbacks(self) -> None:
        self._states = self._states or CallbackStates(self._others)
        self._states.apply(self._saved.get("callbacks", {}))

    def _on_train_batch_begin(self, call: Call, batch: int, logs: Any = None) -> None:
        self._muted = batch + self._executed() <= self._until
        if not self._muted:
            call(batch, logs)

    def _on_train_batch_end(self, call: Call, batch: int, logs: Any = None) -> None:
        if not self._muted:
            call(batch, logs)
            self._backup.after_steps(self._executed())
            self._backup.save_if_due()

    def _on_test_begin(self, call: Call, logs: Any = None) -> None:
        self._trained_metrics = self._metrics.read()  # which the validation resets
        call(logs)

    def _on_test_batch_end(self, call: Call, batch: int, logs: Any = None) -> None:
        call(batch, logs)
        self._backup.save_if_due()  # a validation may take longer than Slurm waits

    def _on_train_end(self, call: Call, logs: Any = None) -> None:
        """Saves the end, so that a restart of the finished training does not train again.

        The other callbacks come first, as they may put back the best weights.
        """
        trained = self._states is not None
        if not trained:
            self._restore_callbacks()
        call(logs)
        for name in _HOOKS:
            delattr(self._callbacks, name)
        self._model.train_function = self._train
        if trained:
            self._backup.epoch, self._backup.step = self._epochs, 0
            if not self._keeps(self._iterator):
                self._backup.drawn = 0
                self._iterators = self._made + 1
            self._trained_metrics = self._iterator = None
            self._backup.save()
        self._end()
        self._data = None

    # Keras 2 overrides the following methods.

    data_name = "epoch_iterator"  # in `fit`
    _steps_name = "_num_batches"  # how many steps an epoch has; None until the data has ended once

    def _build(self) -> None:
        """Builds the model and its optimizer: only variables that exist are restored and saved.

        Without a strategy, Keras would build them in the first step.
        """
        check_keras()
        model, data = self._model, self._data
        make = data._get_iterator

        def count() -> Any:
            self._made += 1
            return make()

        data._get_iterator = count
        spec = data._distributed_dataset.element_spec
        with model.distribute_strategy.scope():
            problem: Any = "Keras could not infer its inputs' shapes"
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

    def _untracked(self) -> List[tf.Variable]:
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

    def _batch_size(self) -> int:
        adapter = self._data.data_adapter
        if type(adapter).__name__ == "ArrayDataAdapter":
            return int(adapter.batch_size)
        return batch_size_of(self._data._distributed_dataset)

    def _begin_at(self, epoch: int, iterators: int) -> None:
        """Makes `fit` begin with this epoch, and with the iterator of this number.

        A dataset that is reshuffled in each epoch draws the next order for each iterator. A Python
        generator draws none, and must not be started unnecessarily.
        """
        self._model._initial_epoch = epoch
        if type(self._data.data_adapter).__name__ not in _GENERATED:
            while self._made < iterators - 1:
                iter(self._data._get_iterator())

    def _make_metrics(self, iterator: Any) -> None:
        pass

    def _count(self, steps: int) -> None:
        """Counts the steps of an iterator over all epochs, which Keras renews after its end."""
        self._data._steps_seen += steps

    def _executed(self) -> int:
        """Returns how many steps this call of the train function executes."""
        return int(self._model.steps_per_execution)

    def _keeps(self, iterator: Any) -> bool:
        """Whether the next epoch uses this iterator too."""
        data = self._data
        return data.steps_per_epoch is not None and data._current_iterator is iterator

    def _end(self) -> None:
        self._model._initial_epoch = None
        del self._data._get_iterator


class Keras2Fit(Fit):
    """A run of `fit` in Keras 2: tf_keras, or the one inside TensorFlow 2.15."""

    data_name = "data_handler"
    _steps_name = "_inferred_steps"
    _complete = False

    def _build(self) -> None:
        model = self._model
        if model.built and not getattr(model.optimizer, "_built", False):
            model.optimizer.build(model.trainable_variables)

    def _untracked(self) -> List[tf.Variable]:
        return []

    def _batch_size(self) -> int:
        return batch_size_of(self._data._dataset)

    def _begin_at(self, epoch: int, iterators: int) -> None:
        # Keras asks this of its own backup.
        at = "_maybe_load_initial_counters_from_ckpt"
        setattr(self._model, at, lambda steps, initial: (max(epoch, initial), 0))

    def _make_metrics(self, iterator: Any) -> None:
        """Traces the first step, which makes the variables of the metrics."""
        if isinstance(self._train, tf.types.experimental.PolymorphicFunction):
            self._train.get_concrete_function(iterator)

    def _count(self, steps: int) -> None:
        pass

    def _executed(self) -> int:
        return int(self._data.step_increment) + 1

    def _keeps(self, iterator: Any) -> bool:
        return not self._data._adapter.should_recreate_iterator()

    def _end(self) -> None:
        vars(self._model).pop("_maybe_load_initial_counters_from_ckpt", None)
