"""`BackupAndResume`: the fit of Keras 3, saved on a signal and resumed at the next step.

`fit` cannot begin in the middle of an epoch. It begins the epoch as usual, but the data leave out
the steps that were trained before, and so `fit` neither trains in them nor calls a callback.
"""

from __future__ import annotations

import contextlib
import inspect
import os
import sys
import traceback
from collections import Counter
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from slurm_resolver import signals
from slurm_resolver.errors import ResumeError
from slurm_resolver.log import warn, warn_once
from slurm_resolver.start.keras_version import check_keras
from slurm_resolver.tf import private_names
from slurm_resolver.tf.causes import cause_of
from slurm_resolver.tf.keras.protocols import EpochIterator, Logs
from slurm_resolver.tf.keras.strategy_registry import sharing_of
from slurm_resolver.tf.keras.weight_comparison import optimizers_of
from slurm_resolver.tf.private_names import Method
from slurm_resolver.tf.training.callback_states import CallbackStates, set_values
from slurm_resolver.tf.training.checkpoint import Backup, batch_size_of
from slurm_resolver.tf.training.dataset_graph import captures_of
from slurm_resolver.tf.training.earlier_epochs import draw, findings_of, read_earlier
from slurm_resolver.tf.training.exactness import function_names, problem_of_step
from slurm_resolver.tf.training.random_states import (
    random_states,
    restore_random,
    set_random_states,
)
from slurm_resolver.tf.training.termination import TerminationConfig

# How many fits have ended in this program, by folder. The next one continues one that failed.
_finished = Counter[str]()


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
    - the state of the other callbacks, History among them: what `fit` has changed in their
      attributes. It restores numbers, strings, NumPy arrays, lists, tuples, sets, dicts, deques,
      variables, generators of random numbers of Python and NumPy, and objects whose attributes are
      plain values. Objects must be made before training begins. Each worker gets the state of the
      first one;
    - the global generators of random numbers of Python, NumPy, Keras and TensorFlow.

    The batches come in the order of an uninterrupted run, if whatever shuffles has a seed. What was
    trained on is read again and skipped. Batches of earlier epochs are read again, too, if the
    order or the content of later ones depends on them: after a `cache`, a second `shuffle`, with
    Python functions, generators, or a PyDataset, whose hooks are called. If something cannot be
    restored, a warning at the first start names it, and what to write.

    The second `fit` of a program that uses the same folder has its own folder within that. After a
    restart, fits that had ended return their weights and history without training.

    If the batches have a different size than before, as with a different number of workers, the
    position in the epoch is converted by the number of samples, rounded down to a batch.
    """

    restores_all_workers = True  # so each worker needs it
    _data: Any = None  # of the current fit: makes the iterators
    _iterator: Any = None  # over the data

    def __init__(
        self,
        directory: str,
        termination: TerminationConfig | None = None,
        *,
        save_every: int | None = None,
        max_to_keep: int = 2,
        other_data: bool = False,
        **state: object,
    ) -> None:
        """Stores the arguments; `fit` restores when it begins.

        Args:
            directory: for this training's checkpoints; one that all nodes share. The second `fit`
                of a program with the same directory uses its folder `fit-2`, and so on.
            termination: what `termination_config` returned; None makes one with its defaults.
            save_every: also save after this many steps, the most that a crash can lose.
            max_to_keep: how many checkpoints to keep.
            other_data: whether to resume although the data are not those of the checkpoint.
            state: further objects for the `tf.train.Checkpoint`.
        """
        super().__init__()
        self.state = state
        # Comes before all other callbacks, and this one after them.
        self._first = keras.callbacks.LambdaCallback(
            on_epoch_begin=self._before_epoch,
            on_epoch_end=self._add_logs,
        )
        self._directory = directory
        self._other_data = other_data
        self._arguments: dict[str, Any] = {
            "termination": termination,
            "save_every": save_every,
            "max_to_keep": max_to_keep,
        }
        if termination is None:  # `fit` makes it only after it has read the first batch
            signals.keep_from_children(signals.OF_USERS)

    def set_model(self, model: keras.Model) -> None:
        """Stores the model; raises ResumeError for one of Keras 2."""
        if keras.__version__.startswith("2.") or not isinstance(model, keras.Model):
            raise ResumeError(
                f"BackupAndResume in the fit of {type(model).__module__}.{type(model).__name__}; "
                "expected a model of Keras 3. For a model of Keras 2, use Keras 2's own callback, "
                "such as tf_keras.callbacks.BackupAndRestore(folder, save_freq=500), or "
                "ResumableLoop in a training loop of your own."
            )
        super().set_model(model)

    def on_train_begin(self, logs: Logs = None) -> None:
        """Restores, and sets the epoch and step at which `fit` begins.

        Raises:
            ResumeError: outside of `fit`, or if Keras or TensorFlow lacks a private name it needs.
            KerasError: for a Keras 3 that is too old.
        """
        check_keras()
        fit = _running_fit()
        data = private_names.FIT_DATA.of(fit)
        callbacks = private_names.FIT_CALLBACKS.of(fit)
        problem = private_names.find_problem(private_names.ResumeName, self.model, data, callbacks)
        if problem:
            raise problem
        ours = (self, self._first)  # Keras' list may be that of an earlier fit
        self._others = [other for other in callbacks.callbacks if other not in ours]
        if any(isinstance(other, keras.callbacks.BackupAndRestore) for other in self._others):
            raise ResumeError(
                "BackupAndResume beside Keras' BackupAndRestore: both choose the epoch at which "
                "fit begins. Leave out BackupAndRestore."
            )
        callbacks.callbacks = [self._first, *self._others, self]
        self._data = data
        self._states: Any = None  # of the other callbacks, from the first epoch on
        self._functions: set[str] | None = None  # those that were there before the first step
        self._read: Any = None  # the epochs, and steps of the next, that were read at the end
        self._logs: Any = {}  # of the epoch's last step
        self._restore()
        findings = findings_of(data, fit)
        self._content = findings.content
        # What the other ranks read may differ from what the leader has saved.
        if (
            self._backup.leads
            and self._saved.get("content", self._content) != self._content
            and not self._other_data
        ):
            raise ResumeError(
                f"{self._backup.restored} belongs to a fit on other data. Give each fit its own "
                f"folder, such as BackupAndResume('{self._directory}/2'), and call the same "
                "fits in each start. If this is the same fit, and its data have changed, pass "
                "other_data=True."
            )
        self._tell(findings.other, *_unbuilt_optimizers(self.model))
        if findings.again:
            self._tell(*self._variables_of_data())
        self._go_to_step(fit, data, findings.again)
        private_names.ENUMERATE_ITERATOR.replace(self._enumerate_iterator, owner=data)
        private_names.CATCH_STOP_ITERATION.replace(self._around_steps, owner=data)

    def _restore(self) -> None:
        """Builds the model, and restores the newest checkpoint of this fit."""
        model = self.model
        states = random_states()
        self._build()
        # A run without this callback builds later, or not at all; Keras' seed may be Python's.
        del states["random"]
        set_random_states(states)
        folder = self._directory
        self._key = os.path.abspath(folder)
        if self._key in _finished:
            folder = os.path.join(folder, f"fit-{_finished[self._key] + 1}")
        self._backup = Backup(
            model.distribute_strategy,
            {"model": model, "left_out": _left_out(model), **self.state},
            folder,
            is_complete=not any(_unbuilt_optimizers(model)),
            collect=self._collect,
            **self._arguments,
        )
        self._saved = self._backup.more or {}
        self._backup.say_start(self.params["epochs"])

    def _go_to_step(self, fit: SimpleNamespace, data: EpochIterator, again: bool) -> None:
        """Sets the epoch at which Keras begins, and reads what the earlier ones have read."""
        backup = self._backup
        count = self.model.steps_per_execution
        per_epoch = private_names.STEPS_PER_EPOCH.of(data)
        saved_per_epoch = self._saved.get("per_epoch") or 0
        done = (backup.epoch - fit.initial_epoch) * saved_per_epoch + backup.step
        # With batches of another size, an epoch has another number of steps.
        is_left = backup.epoch < self.params["epochs"]
        before = is_left and backup.begin_data(_batch_size(data), count)
        self._until = backup.step  # of the epoch in which training resumes; 0 in the later ones
        self._repeats = bool(self._until or before)  # what the callbacks have done in that epoch
        # The states of global random generators, before and after data was read.
        self._before: Any = None
        self._drawn: Any = {}
        if backup.restored:
            private_names.INITIAL_EPOCH.set(self.model, backup.epoch)
            self._before = random_states()
            read = self._saved["read"]
            if before and per_epoch:  # in one iterator for all epochs, the samples count
                earlier = done * before // backup.batch_size - backup.step
                epochs, steps = divmod(earlier, per_epoch)
                read = (fit.initial_epoch + epochs, steps // count * count)
            read_earlier(  # also for a fit that has ended, as the next may read the same data
                self.model,
                fit,
                data,
                again,
                read=read,
                steps=None if before else self._saved["steps"],
                says=backup.leads,
            )
            self._drawn = random_states()

    def _enumerate_iterator(self, call: Method) -> Iterator[Any]:
        """Yields the steps of an epoch that are left: numbers, and the iterator over the data.

        Keras makes a new iterator for each epoch, or one for all epochs with `steps_per_epoch`.
        """
        count = self.model.steps_per_execution
        for step in call():
            self._iterator = step[-1]
            ends = step[0] + count
            if ends > self._until:
                self._restore_random()
                if self._functions is None:
                    self._functions = function_names()
                yield step
                continue
            with contextlib.suppress(StopIteration):
                draw(self._iterator, count)
            is_last = ends + count > self._until
            if is_last and self.model.stop_training:  # a callback has ended the training there
                break
        self._restore_random()

    @contextlib.contextmanager
    def _around_steps(self, call: Method) -> Iterator[None]:
        """Saves if the next batch cannot be read after a signal; takes the logs of the epoch."""
        try:
            with call():
                yield
        except Exception as error:
            # A step that got no data has not changed a variable.
            reads = getattr(type(self._iterator), "__next__", None)
            read = getattr(reads, "__code__", None)
            frames = [frame.f_code for frame, _ in traceback.walk_tb(error.__traceback__)]
            got_no_data = self.model.steps_per_execution == 1 and read in frames
            self._backup.save_after(error, is_between_steps=got_no_data)
            raise
        self._stopped = self.model.stop_training  # within this epoch: Keras has read no further
        # As `fit` does, since a callback may have evaluated after the last step.
        results = self.model.get_metrics_result()
        if results.keys() == self._logs.keys():
            self._logs = _as_numbers(results)

    def _restore_random(self) -> None:
        """Restores the global random generators, once the data was read that was read before."""
        if self._before:
            restore_random(self._saved["random"], self._before)
        self._before = None

    def _metrics(self) -> list[tf.Variable]:
        """Returns the variables of the model's metrics.

        Under TensorFlow's MirroredStrategy, these are the parts of each replica: their sum is the
        metric, and another split of it would have other last digits. Under the strategies of this
        package, metrics are alike in all replicas.
        """
        strategy = self.model.distribute_strategy
        variables = [
            variable.value for metric in self.model.metrics for variable in metric.variables
        ]
        if sharing_of(strategy):
            return variables
        return [
            part for variable in variables for part in strategy.experimental_local_results(variable)
        ]

    def _collect(self) -> dict[str, Any]:
        """Returns what is saved besides variables; all ranks call it."""
        # ParameterServerStrategy only schedules the steps.
        getattr(self.model.train_function, "join", lambda: None)()
        return {
            "callbacks": self._states.collect(),
            "content": self._content,
            "logs": _as_numbers(self._logs),
            "metrics": self._trained_metrics or [variable.numpy() for variable in self._metrics()],
            "per_epoch": private_names.STEPS_PER_EPOCH.of(self._data),
            "random": random_states(),
            "read": self._read or (self._backup.epoch, 0),
            "steps": private_names.NUM_BATCHES.of(self._data),
            "stop": bool(self.model.stop_training),
        }

    def _before_epoch(self, epoch: int, logs: Logs) -> None:
        """Restores the other callbacks before the first epoch."""
        self._backup.epoch = epoch
        self._trained_metrics: Any = None  # the training's, while a validation uses its metrics
        if self._states is None:
            self._restore_callbacks()
        else:
            self._tell(*self._states.problems())
            self._backup.step = 0
            self._until = 0
            self._repeats = False
            self._logs = {}

    def on_epoch_begin(self, epoch: int, logs: Logs = None) -> None:
        """Restores again what was saved after the beginning of this epoch."""
        if self._repeats:
            self._restore_callbacks()
            self._backup.restore_again()  # a LearningRateScheduler has changed the rate
            try:
                set_values(self._metrics(), self._saved["metrics"])
            except ValueError:
                self.model.reset_metrics()  # some may have got their values
                warn(
                    "the metrics of this epoch start from zero: the model now has different "
                    "metrics, or a different number of replicas"
                )
            self._logs = self._saved["logs"]
            self.model.stop_training = self._saved["stop"]

    def _restore_callbacks(self) -> None:
        if self._states is None:
            saved = tf.train.TrackableView(self._backup.checkpoint).descendants()
            self._states = CallbackStates(self._others, saved)
            private_names.INITIAL_EPOCH.set(self.model, None)  # which this fit has read
        set_random_states(self._drawn)  # the callbacks may have drawn since
        self._states.apply(self._saved.get("callbacks", {}))
        self._tell(*self._states.problems())

    def _tell(self, *problems: str) -> None:
        """Warns once, in the leader, for each reason why this training cannot resume exactly."""
        is_left = self._backup.epoch < self.params["epochs"]
        for problem in problems:
            if problem and self._backup.leads and is_left:
                warn_once(f"if this training is interrupted, it will not resume exactly: {problem}")

    def _variables_of_data(self) -> Iterator[str]:
        """Yields why data that read or change what is restored cannot be read again."""
        captures = captures_of(_whole(self._data))
        for item in tf.train.TrackableView(self._backup.checkpoint).descendants():
            variable = item.value if isinstance(item, keras.Variable) else item
            if isinstance(variable, tf.Variable):
                parts = self.model.distribute_strategy.experimental_local_results(variable)
                if not captures.isdisjoint(id(part.handle) for part in parts):
                    yield (
                        f"the data use the variable {variable.name!r}, which is restored before "
                        "earlier batches are read again: give them one that neither the model nor "
                        "BackupAndResume has"
                    )

    def _add_logs(self, epoch: int, logs: dict[str, float]) -> None:
        """Gives the other callbacks the logs of an epoch of which no step was left."""
        logs.update({**self._logs, **logs})

    def on_train_batch_end(self, batch: int, logs: Logs = None) -> None:
        """Saves if that is due."""
        self._logs = logs
        if self._functions:  # after the first step
            problem = problem_of_step(self._functions, self._backup.checkpoint)
            self._tell(problem, *self._states.problems())
            self._functions = set()
        self._backup.after_steps(self.model.steps_per_execution)
        self._backup.save_if_due()

    def on_test_begin(self, logs: Logs = None) -> None:
        """Keeps the metrics of the training, which a validation resets."""
        if self._data:
            self._trained_metrics = [variable.numpy() for variable in self._metrics()]

    def on_test_batch_end(self, batch: int, logs: Logs = None) -> None:
        """Saves on a signal: a validation may take longer than Slurm waits."""
        if self._data:
            self._backup.save_if_due()

    def on_train_end(self, logs: Logs = None) -> None:
        """Saves the end, so that a restart of the finished training does not train again.

        The other callbacks come first, as they may put back the best weights.
        """
        backup = self._backup
        if self._states is None:
            self._restore_callbacks()
            self._restore_random()
            backup.restore_again()  # the other callbacks have changed the final weights once more
        else:
            self._read = (backup.epoch, backup.step) if self._stopped else (backup.epoch + 1, 0)
            backup.epoch = self.params["epochs"]
            backup.step = 0
            backup.save()
        _finished[self._key] += 1
        self._data = None  # which also holds this callback
        self._iterator = None

    def _build(self) -> None:
        """Builds the model and its optimizer: only variables that exist are restored and saved.

        Without a strategy, Keras would build them in the first step.
        """
        model = self.model
        spec = _whole(self._data).element_spec
        with model.distribute_strategy.scope():
            problem = "Keras could not infer its inputs' shapes"
            try:
                private_names.SYMBOLIC_BUILD.of(model)(data_batch=spec)
            except Exception as error:  # whatever the model's own code raises
                problem = cause_of(error)
            if not model.built:
                raise ResumeError(
                    f"the model {model.name!r} is not built, so nothing can be restored into "
                    f"it ({problem}): start it with keras.Input, or call it on a batch before fit."
                )
            if model.optimizer and not model.optimizer.built:
                model.optimizer.build(model.trainable_variables)


def _running_fit() -> SimpleNamespace:
    """Returns the variables of Keras' `fit`, which calls this.

    Keras passes neither the other callbacks nor the data to a callback.
    """
    code = inspect.unwrap(keras.Model.fit).__code__
    for frame, _ in traceback.walk_stack(sys._getframe(1)):
        if frame.f_code is code:
            return SimpleNamespace(**frame.f_locals)
    raise ResumeError(
        "BackupAndResume was called outside of fit; expected model.fit(…, callbacks=[backup]). "
        "For a training loop of your own use ResumableLoop."
    )


def _as_numbers(logs: dict[str, Any]) -> dict[str, Any]:
    """Returns logs as `fit` gives them to callbacks at the end of an epoch."""
    return {
        name: float(value) if np.ndim(value) == 0 else np.asarray(value)
        for name, value in logs.items()
    }


def _whole(data: EpochIterator | None) -> Any:
    """Returns the dataset that `fit` reads, of global batches."""
    dataset = private_names.DISTRIBUTED_DATASET.of(data)
    return getattr(dataset, "whole", dataset)  # a `WorkerData` has only the rows of a worker


def _batch_size(data: EpochIterator) -> int:
    """Returns how many samples a global batch has; 0 if that is not known."""
    adapter = private_names.DATA_ADAPTER.of(data)
    if isinstance(adapter, private_names.ARRAYS.get()):
        return int(private_names.ARRAYS_BATCH_SIZE.of(adapter))
    return batch_size_of(_whole(data))


def _left_out(model: keras.Model) -> list[tf.Variable]:
    """Returns the variables that a `tf.train.Checkpoint` of a model leaves out.

    These are the states of its random generators, which draw the masks of dropout, and are no
    weights; and what it and its layers have in lists, tuples and dicts, such as optimizers.
    """
    weights = set(map(id, model.weights))
    states = [variable.value for variable in model.variables if id(variable) not in weights]
    states += [
        variable.value for _, optimizer in optimizers_of(model) for variable in optimizer.variables
    ]
    return states + _listed([vars(layer) for layer in private_names.FLATTEN_LAYERS.of(model)()])


def _listed(value: object) -> list[tf.Variable]:
    """Returns a `tf.Variable`, or those in a collection and the collections in it."""
    if isinstance(value, tf.Variable):
        return [value]
    if isinstance(value, dict):
        return _listed(list(value.values()))
    items = value if isinstance(value, (list, tuple)) else ()
    return [variable for item in items for variable in _listed(item)]


def _unbuilt_optimizers(model: keras.Model) -> Iterator[str]:
    """Yields why optimizers of a model, besides the one of `compile`, cannot be restored."""
    for name, optimizer in optimizers_of(model):
        if not optimizer.built:
            yield (
                f"the variables of the optimizer in {name!r} do not exist before the first step: "
                "call its build(variables) before fit, such as in compile()"
            )
