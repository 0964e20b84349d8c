"""`BackupAndResume`: the fit of Keras 3, saved on a signal and resumed at the next step.

`fit` cannot begin in the middle of an epoch. It begins the epoch as usual, but the data leave out
the steps that were trained before, and so `fit` neither trains in them nor calls a callback.
"""

from __future__ import annotations

import functools
import inspect
import sys
import traceback
import types
from collections.abc import Iterator
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from slurm_resolver.errors import ResumeError
from slurm_resolver.log import warn
from slurm_resolver.start.keras_version import check_keras
from slurm_resolver.tf import private_names
from slurm_resolver.tf.keras.sharing import Share, is_one_of
from slurm_resolver.tf.keras.strategy_registry import sharing_of
from slurm_resolver.tf.private_names import Method
from slurm_resolver.tf.training.checkpoint import Backup, batch_size_of
from slurm_resolver.tf.training.fit_state import CallbackStates
from slurm_resolver.tf.training.termination import TerminationConfig

# The calls of Keras' list of callbacks that `_Fit` replaces by its methods of the same names.
_HOOKS = (
    "on_epoch_begin",
    "on_epoch_end",
    "on_train_batch_end",
    "on_test_begin",
    "on_test_batch_end",
    "on_train_end",
)
_GENERATED = (private_names.GENERATOR, private_names.PY_DATASET)


class BackupAndResume(keras.callbacks.Callback):  # type: ignore[misc]
    """Saves the training on a signal, and lets the next `fit` continue at the next step.

    ::

        backup = BackupAndResume("checkpoints", termination_config(resolver), save_every=500)
        model.fit(data, epochs=10, steps_per_epoch=200, callbacks=[backup, early_stopping])

    A callback for models of Keras 3, from 3.10 on. A run that was preempted ends with the weights
    and the history of an uninterrupted one. The checkpoint holds

    - the model, its optimizer, the state of dropout, the epoch and the step;
    - the metrics of the epoch that was interrupted. If a signal comes during the validation, only
      the validation is repeated;
    - the state of the other callbacks, History among them: the attributes that `fit` has changed
      and that are numbers, strings, NumPy arrays, or lists, tuples, sets and dicts of these. A
      callback that has changed anything else is left as it is, such as TensorBoard and CSVLogger,
      which write to files. Each worker gets the state of the first one.

    The batches must come in the same order each time: seed whatever shuffles. The batches that
    were trained on are read once more and skipped. The order of a `tf.data.Dataset` that is
    shuffled anew in each epoch is reproduced; for a PyDataset that is shuffled, use a dataset with
    ``shuffle(n, seed=1).repeat()`` and `steps_per_epoch`. The state of a Python generator and of
    random generators outside the model is not kept.

    If the batches have a different size than before, as with a different number of workers, the
    position in the epoch is converted by the number of samples, rounded down to a batch.
    """

    restores_all_workers = True  # so each worker needs it

    def __init__(
        self,
        directory: str,
        termination: TerminationConfig | None = None,
        *,
        save_every: int | None = None,
        max_to_keep: int = 2,
        **state: Any,
    ) -> None:
        """Stores the arguments; `fit` restores when it begins.

        Args:
            directory: for this training's checkpoints; one that all nodes share.
            termination: what `termination_config` returned; None makes one with its defaults.
            save_every: also save after this many steps, the most that a crash can lose.
            max_to_keep: how many checkpoints to keep.
            state: further objects for the `tf.train.Checkpoint`.
        """
        super().__init__()
        self.state = state
        self.options = {
            "directory": directory,
            "termination": termination,
            "save_every": save_every,
            "max_to_keep": max_to_keep,
        }

    def on_train_begin(self, logs: Any = None) -> None:
        """Restores, and sets the epoch and step at which `fit` begins.

        Raises:
            ResumeError: outside of Keras 3's `fit`, or if Keras or TensorFlow lacks a private name
                it needs.
            KerasError: for a Keras 3 that is too old.
        """
        check_keras()
        # Keras does not pass the other callbacks and the data to a callback. They are variables of
        # `fit`, the caller.
        fit = inspect.unwrap(keras.Model.fit).__code__
        for frame, _ in traceback.walk_stack(sys._getframe(1)):
            if frame.f_code is fit and not keras.__version__.startswith("2."):
                found = types.SimpleNamespace(**frame.f_locals)
                data = private_names.FIT_DATA.of(found)
                callbacks = private_names.FIT_CALLBACKS.of(found)
                private_names.check_resume(self.model, data, callbacks)
                _Fit(self, callbacks, data)
                return
        raise ResumeError(
            f"BackupAndResume for {type(self.model).__module__}.{type(self.model).__name__}: "
            "expected model.fit(…, callbacks=[backup]) of a model of Keras 3. For a model of Keras "
            "2, use Keras 2's own callback, such as "
            "tf_keras.callbacks.BackupAndRestore(folder, save_freq=500); for a training loop of "
            "your own, use ResumableLoop."
        )


class _Fit:
    """A run of `fit`: it wraps the callbacks, and the iteration over the data."""

    _states: Any = None  # of the other callbacks, from the first epoch on
    _made = 0  # iterators over the data
    _iterator: Any = None  # the current one
    _iterators = 0  # their number, including the current one
    _trained_metrics: Any = None  # the training's, while a validation uses its metrics

    def __init__(self, callback: Any, callbacks: Any, data: Any) -> None:
        """Restores the training, and wraps. Keras is calling `on_train_begin` of the callbacks.

        `callbacks` is Keras' list of all callbacks. `data` makes the iterators over the data.
        """
        model = callback.model
        self._model = model
        self._data = data
        self._callbacks = callbacks
        self._others = [other for other in callbacks.callbacks if other is not callback]
        self._epochs = callback.params["epochs"]
        self._logs: dict[str, Any] = {}  # of the steps that were trained before
        self._build()
        # A `tf.train.Checkpoint` of the model leaves out the states of its random generators, which
        # draw the masks of dropout. They are no weights.
        weights = set(map(id, model.weights))
        random = [one.value for one in model.variables if id(one) not in weights]
        backup = Backup(
            model.distribute_strategy,
            {"model": model, "random": random, **callback.state},
            **callback.options,
            complete=True,
            collect=self._collect,
        )
        self._backup = backup
        self._saved = backup.more or {}
        backup.say_start(self._epochs)
        adapter = private_names.DATA_ADAPTER.of(data)
        if isinstance(adapter, private_names.ARRAYS.get()):
            batch_size = int(private_names.ARRAYS_BATCH_SIZE.of(adapter))
        else:
            batch_size = batch_size_of(private_names.DISTRIBUTED_DATASET.of(data))
        # With batches of another size, an epoch has another number of steps.
        resized = backup.epoch < self._epochs and backup.begin_data(batch_size)
        if private_names.NUM_BATCHES.of(data) is None and not resized:
            private_names.NUM_BATCHES.set(
                data, self._saved.get("steps")
            )  # until the data has ended
        self._until = backup.step  # of the epoch in which training resumes; 0 in the later ones
        for name, wrapper in (
            (private_names.GET_ITERATOR, self._get_iterator),
            (private_names.ENUMERATE_ITERATOR, self._enumerate_iterator),
        ):
            name.set(data, functools.partial(wrapper, name.of(data)))
        if backup.restored:
            private_names.INITIAL_EPOCH.set(model, backup.epoch)
            # A dataset that is reshuffled in each epoch draws the next order for each iterator. A
            # Python generator draws none, and must not be started unnecessarily.
            if not is_one_of(adapter, _GENERATED):
                for _ in range(self._saved["iterators"] - 1):
                    iter(private_names.GET_ITERATOR.of(data)())
        for hook in _HOOKS:
            wrapper = getattr(self, f"_{hook}")
            setattr(callbacks, hook, functools.partial(wrapper, getattr(callbacks, hook)))

    def _get_iterator(self, call: Method) -> Any:
        self._made += 1
        return call()

    def _enumerate_iterator(self, call: Method) -> Iterator[Any]:
        """Yields the steps of an epoch that are left: numbers, and the iterator over the data.

        Keras makes a new iterator for each epoch, or one for all epochs with `steps_per_epoch`.
        """
        for step in call():
            iterator = step[-1]
            if self._iterator is None:
                self._catch_up(iterator)
            elif iterator is not self._iterator:
                self._backup.drawn = 0
            self._iterator = iterator
            self._iterators = self._made
            if self._model.stop_training:  # in one of the steps that were trained before
                return
            if step[0] + self._model.steps_per_execution > self._until:
                yield step

    def _catch_up(self, iterator: Any) -> None:
        """Restores the metrics, and skips the batches that were trained on."""
        if self._until:
            saved = self._saved["metrics"]
            variables = self._metrics()
            if [np.shape(value) for value in saved] == [one.shape for one in variables]:
                for variable, value in zip(variables, saved):
                    variable.assign(value)
            else:
                warn(
                    "the metrics of this epoch start from zero: the model now has different "
                    "metrics, or a different number of replicas"
                )
            self._logs = dict(self._model.get_metrics_result())
        for _ in range(self._backup.drawn):
            next(iterator, None)
        # Keras counts the steps of an iterator over all epochs, which it renews after its end.
        seen = private_names.STEPS_SEEN.of(self._data)
        private_names.STEPS_SEEN.set(self._data, seen + self._backup.drawn - self._until)

    def _metrics(self) -> list[tf.Variable]:
        """Returns the variables of the model's metrics.

        Under TensorFlow's MirroredStrategy, these are the parts of each replica: their sum is the
        metric, and another split of it would have other last digits. Under the strategies of this
        package, metrics are alike in all replicas.
        """
        strategy = self._model.distribute_strategy
        found = [variable.value for metric in self._model.metrics for variable in metric.variables]
        if sharing_of(strategy):
            return found
        return [part for one in found for part in strategy.experimental_local_results(one)]

    def _collect(self) -> dict[str, Any]:
        """Returns what is saved besides variables; all ranks call it."""
        # ParameterServerStrategy only schedules the steps.
        getattr(self._model.train_function, "join", lambda: None)()
        return {
            "callbacks": self._states.collect(),
            "iterators": self._iterators,
            "metrics": self._trained_metrics or [one.numpy() for one in self._metrics()],
            "steps": private_names.NUM_BATCHES.of(self._data),
            "stop": bool(self._model.stop_training),
        }

    def _on_epoch_begin(self, call: Method, epoch: int, logs: Any = None) -> None:
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
            self._backup.step = 0
            self._until = 0
            self._logs = {}
        call(epoch, logs)
        if is_first and self._until:
            self._restore_callbacks()
            self._backup.restore_again()  # a LearningRateScheduler has changed the rate
            self._model.stop_training = self._saved["stop"]

    def _restore_callbacks(self) -> None:
        self._states = self._states or CallbackStates(self._others)
        self._states.apply(self._saved.get("callbacks", {}))

    def _on_epoch_end(self, call: Method, epoch: int, logs: Any) -> None:
        logs.update({**self._logs, **logs})  # it lacks them if no step was left
        call(epoch, logs)

    def _on_train_batch_end(self, call: Method, batch: int, logs: Any = None) -> None:
        call(batch, logs)
        self._backup.after_steps(self._model.steps_per_execution)
        self._backup.save_if_due()

    def _on_test_begin(self, call: Method, logs: Any = None) -> None:
        self._trained_metrics = [one.numpy() for one in self._metrics()]  # the validation resets it
        call(logs)

    def _on_test_batch_end(self, call: Method, batch: int, logs: Any = None) -> None:
        call(batch, logs)
        self._backup.save_if_due()  # a validation may take longer than Slurm waits

    def _on_train_end(self, call: Method, logs: Any = None) -> None:
        """Saves the end, so that a restart of the finished training does not train again.

        The other callbacks come first, as they may put back the best weights.
        """
        backup = self._backup
        data = self._data
        trained = self._states is not None
        if not trained:
            self._restore_callbacks()
        call(logs)
        for name in _HOOKS:
            delattr(self._callbacks, name)
        if trained:
            backup.epoch = self._epochs
            backup.step = 0
            # The next epoch would use the iterator of `steps_per_epoch` too.
            continues = private_names.STEPS_PER_EPOCH.of(data) is not None
            if not continues or private_names.CURRENT_ITERATOR.of(data) is not self._iterator:
                backup.drawn = 0
                self._iterators = self._made + 1
            self._trained_metrics = None
            backup.save()
        private_names.INITIAL_EPOCH.set(self._model, None)
        self._data = None  # which also holds this run
        self._iterator = None

    def _build(self) -> None:
        """Builds the model and its optimizer: only variables that exist are restored and saved.

        Without a strategy, Keras would build them in the first step.
        """
        model = self._model
        spec = private_names.DISTRIBUTED_DATASET.of(self._data).element_spec
        with model.distribute_strategy.scope():
            problem: Any = "Keras could not infer its inputs' shapes"
            try:
                batch = spec.batch if isinstance(spec, Share) else spec
                private_names.SYMBOLIC_BUILD.of(model)(data_batch=batch)
            except Exception as error:  # whatever the model's own code raises
                problem = error
            if not model.built:
                raise ResumeError(
                    f"the model {model.name!r} is not built, so nothing can be restored into "
                    f"it ({problem}): start it with keras.Input, or call it on a batch before fit."
                )
            if model.optimizer and not model.optimizer.built:
                model.optimizer.build(model.trainable_variables)
