"""`BackupAndResume`: Keras' fit, saved on a signal and resumed at the next step.

`fit` cannot begin in the middle of an epoch. It begins the epoch as usual; until the step where it
was saved, no callback is called, and the model is not trained.
"""

from __future__ import annotations

import functools
import sys
from typing import Any, Callable, Dict, Optional, Union

import tensorflow as tf

from slurm_resolver.errors import ResumeError
from slurm_resolver.log import warn
from slurm_resolver.tf.training import metric_state
from slurm_resolver.tf.training.callback_state import CallbackStates, pack, unpack
from slurm_resolver.tf.training.checkpoint import Backup
from slurm_resolver.tf.training.keras2 import Keras2
from slurm_resolver.tf.training.keras3 import Keras3
from slurm_resolver.tf.training.termination import TerminationConfig

Call = Callable[..., Any]


def _nothing(*args: Any, **kwargs: Any) -> None:
    """Keras calls this in every callback."""


class BackupAndResume:
    """Saves the training on a signal, and lets the next `fit` continue at the next step.

    ::

        backup = BackupAndResume("checkpoints", termination_config(resolver), save_every=500)
        model.fit(data, epochs=10, steps_per_epoch=200, callbacks=[backup, early_stopping])

    A callback for models of Keras 3, from 3.10 on, and of Keras 2 (tf_keras, or the one inside
    TensorFlow 2.15). A run that was preempted ends with the weights and the history of an
    uninterrupted one. The checkpoint holds

    - the model, its optimizer, the state of dropout (Keras 3), the epoch and the step;
    - the metrics of the epoch that was interrupted. If a signal comes during the validation, only
      the validation is repeated;
    - the state of the other callbacks, History among them: the attributes that `fit` has changed
      and that are numbers, strings, NumPy arrays, or lists, tuples, sets and dicts of these. A
      callback that has changed anything else is left as it is, such as TensorBoard and CSVLogger,
      which write to files. Each worker gets the state of the first one.

    The batches must come in the same order each time: seed whatever shuffles. The batches that
    were trained on are read once more and skipped. Keras 3 also reproduces the order of a
    `tf.data.Dataset` that is shuffled anew in each epoch; for Keras 2, or a PyDataset that is
    shuffled, use ``shuffle(n, seed=1).repeat()`` with `steps_per_epoch`. The state of a Python
    generator and of random generators outside the model is not kept.

    If the batches have another size than before, as with another number of workers, the position in
    the epoch is converted by the count of samples, rounded down to a batch.
    """

    async_safe = True  # Keras 3: it lets other callbacks run beside the training
    _supports_tf_logs = True  # Keras 2: it does not read them, so that no step waits for the device

    def __init__(
        self,
        directory: str,
        termination: Optional[TerminationConfig] = None,
        *,
        save_every: Optional[int] = None,
        max_to_keep: int = 2,
        **state: Any,
    ) -> None:
        """Stores the arguments; `fit` restores when it begins.

        Args:
            directory: for this training's checkpoints; one that all nodes share.
            termination: what `termination_config` returned; None makes one with its defaults.
            save_every: also save after this many steps, the most that a crash can lose.
            max_to_keep: how many checkpoints to keep.
            state: more that a `tf.train.Checkpoint` can hold.
        """
        self.model: Any = None
        self.params: Any = None
        self.state = state
        self.options = directory, termination, save_every, max_to_keep

    def set_model(self, model: Any) -> None:
        """Stores the model, of either Keras."""
        self.model = model

    def set_params(self, params: Any) -> None:
        """Stores the number of epochs, as `fit` passes it."""
        self.params = params

    def on_train_begin(self, logs: Any = None) -> None:
        """Restores, and sets the epoch and step at which `fit` begins.

        Raises:
            ResumeError: for a model of another Keras, or outside of its `fit`.
            KerasError: for a Keras 3 that is too old.
        """
        model = self.model
        for kind in (Keras3, Keras2):
            if kind.made(model):
                variables = _variables_of_fit(model)
                _Fit(kind(model, variables), self, variables["callbacks"])
                return
        raise ResumeError(
            f"{type(model).__module__}.{type(model).__name__}: expected a model of Keras 3 or of "
            "Keras 2. For another training use ResumableLoop."
        )

    on_train_end = on_epoch_begin = on_epoch_end = on_batch_begin = on_batch_end = _nothing
    on_train_batch_begin = on_train_batch_end = on_test_begin = on_test_end = _nothing
    on_test_batch_begin = on_test_batch_end = on_predict_begin = on_predict_end = _nothing
    on_predict_batch_begin = on_predict_batch_end = _nothing
    # Keras 2 asks whether to call a callback for each batch.
    _implements_train_batch_hooks = _implements_test_batch_hooks = _nothing
    _implements_predict_batch_hooks = _nothing


class _Fit:
    """One run of `fit`: wraps its train function and these calls of its list of callbacks."""

    HOOKS = (
        *("on_epoch_begin", "on_train_batch_begin", "on_train_batch_end"),
        *("on_test_begin", "on_test_batch_end", "on_train_end"),
    )

    def __init__(
        self, keras: Union[Keras2, Keras3], callback: BackupAndResume, callbacks: Any
    ) -> None:
        """Restores, and wraps; Keras is calling `on_train_begin` of the callbacks."""
        self._keras = keras
        self._model = model = callback.model
        self._epochs = callback.params["epochs"]
        self._strategy = model.distribute_strategy
        self._muted = False  # whether the current step was trained before
        self._first = 0  # the first step of the current call of the train function
        self._iterator: Any = None
        self._iterators = 0  # how many were made, including the current one
        self._logs: Any = None  # of the steps that are not trained again
        self._trained_metrics: Any = None  # the training's, while a validation uses its metrics
        self._states: Optional[CallbackStates] = None
        self._callbacks = callbacks
        self._others = [other for other in callbacks.callbacks if other is not callback]
        self._rest = _Rest()
        untracked = {str(at): variable for at, variable in enumerate(keras.untracked())}
        fit = tf.train.Checkpoint(rest=self._rest, random=tf.train.Checkpoint(**untracked))
        self._backup = backup = Backup(
            self._strategy,
            {"model": model, "fit": fit, **callback.state},
            *callback.options,
            complete=isinstance(keras, Keras3),
            prepare=self._prepare,
        )
        self._restored = unpack(self._rest.packed) if backup.restored else {}
        backup.say_start(self._epochs)
        steps = self._restored.get("steps")
        if backup.epoch < self._epochs and backup.begin_data(keras.batch_size()):
            steps = None  # an epoch has another number of steps now
        self._within = backup.step > 0  # whether training resumes within an epoch
        self._until = 0  # in that epoch, the step at which it resumes
        if backup.restored:
            keras.begin_at(backup.epoch, self._restored["iterators"], steps)
            # A call of the train function executes several steps.
            self._until = backup.step - backup.step % keras.executed()
        for name in self.HOOKS:
            hook = functools.partial(getattr(self, name), getattr(callbacks, name))
            setattr(callbacks, name, hook)
        # After a `fit` that has failed, the model still has the replaced function.
        self._train = getattr(model.train_function, "trains", model.train_function)
        # ParameterServerStrategy only schedules the steps; this waits until they have ended.
        self._join = getattr(self._train, "join", lambda: None)
        replaced: Any = functools.partial(self._draw_and_train)
        replaced.trains, replaced.join = self._train, self._join
        model.train_function = replaced

    def on_epoch_begin(self, call: Call, epoch: int, logs: Any = None) -> None:
        """Restores the callbacks before the first epoch.

        If training resumes within that epoch, they were saved after its beginning: once more.
        """
        self._backup.epoch = epoch
        self._trained_metrics = None
        resumes = self._states is None and self._within
        if self._states is None:
            self._restore_callbacks()
        else:
            self._backup.step = self._until = 0
        call(epoch, logs)
        if resumes:
            self._restore_callbacks()
            self._model.stop_training = self._restored["stop"]

    def _restore_callbacks(self) -> None:
        self._states = self._states or CallbackStates(self._others)
        self._states.apply(self._restored.get("callbacks", {}))

    def on_train_batch_begin(self, call: Call, batch: int, logs: Any = None) -> None:
        self._first = batch
        self._muted = batch < self._until
        if not self._muted:
            call(batch, logs)

    def on_train_batch_end(self, call: Call, batch: int, logs: Any = None) -> None:
        if self._muted:
            return
        call(batch, logs)
        # In Keras 3.10, `batch` is the first of the executed steps; in later versions, the last.
        done = max(batch + 1, self._first + self._keras.executed())
        self._backup.after_steps(done - self._first)
        self._backup.save_if_due()

    def on_test_begin(self, call: Call, logs: Any = None) -> None:
        self._trained_metrics = self._read_metrics()  # which the validation resets
        call(logs)

    def on_test_batch_end(self, call: Call, batch: int, logs: Any = None) -> None:
        call(batch, logs)
        self._backup.save_if_due()  # a validation may take longer than Slurm waits

    def on_train_end(self, call: Call, logs: Any = None) -> None:
        """Saves the end, so that a restart of the finished training does not train again.

        The other callbacks come first, as they may put back the best weights.
        """
        trained = self._states is not None
        if not trained:
            self._restore_callbacks()
        call(logs)
        for name in self.HOOKS:
            delattr(self._callbacks, name)
        self._model.train_function = self._train
        if trained:
            backup = self._backup
            backup.epoch, backup.step = self._epochs, 0
            if not self._keras.keeps(self._iterator):
                backup.drawn = 0
                self._iterators = self._keras.iterators + 1
            self._trained_metrics = self._iterator = None
            backup.save()
        self._keras.end()

    def _draw_and_train(self, iterator: Any) -> Any:
        """Replaces the model's train function, the only one that gets the iterator.

        Keras makes a new iterator for each epoch, or one for all if `steps_per_epoch` is given.
        """
        if self._iterator is None:
            self._catch_up(iterator)
        elif iterator is not self._iterator:
            self._backup.drawn = 0
        if iterator is not self._iterator:
            self._iterator, self._iterators = iterator, self._keras.iterators
        return self._logs if self._muted else self._train(iterator)

    def _catch_up(self, iterator: Any) -> None:
        """Restores the metrics, and skips the batches that were trained on."""
        if self._within:
            self._keras.trace(self._train, iterator)
            metrics = self._restored["metrics"]
            if not metric_state.assign(self._strategy, self._keras.metrics(), metrics):
                warn("the metrics of this epoch start from zero: the model has other metrics now")
            self._logs = dict(self._model.get_metrics_result())
        for _ in range(self._backup.drawn):
            next(iterator, None)
        self._keras.count(self._backup.drawn - self._until)

    def _read_metrics(self) -> metric_state.Rows:
        return metric_state.read(self._strategy, self._keras.metrics())

    def _prepare(self) -> None:
        """Collects what is saved besides variables; all ranks call it."""
        self._join()
        self._keras.flush(self._callbacks)
        metrics = self._trained_metrics
        if metrics is None:
            metrics = self._read_metrics()
        assert self._states is not None
        rest = {
            "callbacks": self._states.collect(),
            "iterators": self._iterators,
            "metrics": metric_state.gather(self._strategy, metrics),
            "steps": self._keras.steps(),
            "stop": bool(self._model.stop_training),
        }
        self._rest.packed = pack(rest)


class _Rest(tf.train.experimental.PythonState):  # type: ignore[misc]
    """What is in the checkpoint besides variables."""

    packed: Union[str, bytes] = ""

    def serialize(self) -> Union[str, bytes]:
        return self.packed

    def deserialize(self, string_value: bytes) -> None:
        self.packed = string_value


def _variables_of_fit(model: Any) -> Dict[str, Any]:
    """Returns the variables of Keras' `fit`, which is calling.

    Keras gives a callback neither the other callbacks nor the data.
    """
    frame: Any = sys._getframe(1)
    while frame is not None:
        local: Dict[str, Any] = frame.f_locals
        is_fit = frame.f_code.co_name == "fit" and local.get("self") is model
        if is_fit and hasattr(local.get("callbacks"), "callbacks"):
            return local
        frame = frame.f_back
    raise ResumeError(
        f"BackupAndResume was called outside of Keras' fit of {type(model).__name__}. "
        "For a training loop of your own use ResumableLoop."
    )
