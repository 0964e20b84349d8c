"""`BackupAndResume`: Keras' fit, saved on a signal and resumed at the very step."""

from __future__ import annotations

from typing import Any, Optional, Tuple

import tensorflow as tf

from slurm_resolver.errors import ResumeError
from slurm_resolver.tf.checkpoint import Backup
from slurm_resolver.tf.termination import TerminationConfig

if tuple(map(int, tf.__version__.split(".")[:2])) < (2, 16):  # its own Keras is Keras 2
    from tensorflow.keras.callbacks import Callback
else:
    try:
        from tf_keras.callbacks import Callback
    except ImportError as error:
        raise ImportError(
            "BackupAndResume needs Keras 2, as Keras 3 cannot fit under MultiWorkerMirroredStrategy"
            f" ({error}): pip install tf_keras, of the same minor version as your TensorFlow."
        ) from error


class BackupAndResume(Callback):  # type: ignore[misc]
    """Saves the training on a signal, and lets the next `fit` go on at the very step after it.

    ::

        backup = BackupAndResume("checkpoints", termination_config(resolver), save_every=500)
        model.fit(data, epochs=10, steps_per_epoch=200, callbacks=[backup])

    The checkpoint holds the model, its optimizer, the epoch and the step. A run that was preempted
    ends with the weights of one that was not, if the batches come in the same order each time:
    seed whatever shuffles, and for another order in each epoch use ``shuffle(n, seed=1).repeat()``
    with `steps_per_epoch`. The batches that were trained on already are read once more and skipped.

    Put it before the callbacks that count epochs. Their own state, the metrics of the steps before
    the restart, and the state of dropout's random generator are not kept.
    """

    _supports_tf_logs = True  # it does not read them, so that no step waits for the device

    def __init__(
        self,
        directory: str,
        termination: Optional[TerminationConfig] = None,
        *,
        save_every: Optional[int] = None,
        max_to_keep: int = 2,
        skip: bool = True,
        **state: Any,
    ) -> None:
        """Prepares; the restore is at the beginning of `fit`.

        Args:
            directory: for this training's checkpoints; one that all nodes share.
            termination: what `termination_config` returned; None makes one with its defaults.
            save_every: also save after so many steps: what a crash can lose.
            max_to_keep: how many checkpoints to keep.
            skip: whether to skip the batches that were trained on before; False if the data begins
                after them (`slurm_resolver.tf.checkpoint.counters` tells where that is).
            state: more that a `tf.train.Checkpoint` can hold.
        """
        super().__init__()
        self._directory = directory
        self._termination = termination
        self._save_every = save_every
        self._max_to_keep = max_to_keep
        self._skip = skip
        self._state = state
        self._backup: Optional[Backup] = None
        self._train_function: Any = None
        self._iterator: Any = None

    def on_train_begin(self, logs: Any = None) -> None:
        """Restores, and tells `fit` where to begin."""
        model = self.model
        if not hasattr(model, "_maybe_load_initial_counters_from_ckpt"):
            raise ResumeError(
                f"{type(model).__module__}.{type(model).__name__} is no model of Keras 2; this "
                "callback is for Keras 2 only. With Keras 3 use ResumableLoop."
            )
        # The optimizer's variables must exist to be saved, and to be restored.
        if model.built and not getattr(model.optimizer, "_built", False):
            model.optimizer.build(model.trainable_variables)
        self._backup = Backup(
            self._directory,
            model.distribute_strategy,
            self._termination,
            {"model": model, **self._state},
            self._save_every,
            self._max_to_keep,
        )
        restored = self._backup.restore()
        model._training_state = _Start(self._backup) if restored else None
        self._iterator = None
        self._train_function = model.train_function
        model.train_function = self._draw_and_train

    def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
        """Takes over Keras' count."""
        assert self._backup is not None
        self._backup.epoch = epoch

    def on_train_batch_begin(self, batch: int, logs: Any = None) -> None:
        """Takes over Keras' count; what is to be saved is saved in `_draw_and_train`."""
        assert self._backup is not None
        self._backup.step = batch

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        """Counts the steps."""
        assert self._backup is not None
        self._backup.after_steps(batch + 1 - self._backup.step)

    def on_train_end(self, logs: Any = None) -> None:
        """Saves the end, so that a restart of the finished training trains no more."""
        assert self._backup is not None
        self.model.train_function = self._train_function
        self.model._training_state = None
        if self._iterator is not None:  # else nothing was left to train
            self._backup.epoch, self._backup.step = self.params["epochs"], 0
            self._backup.save()
        self._iterator = None

    def _draw_and_train(self, iterator: Any) -> Any:
        """Takes the place of the model's train function, as only that gets the iterator.

        Keras makes a new one for each epoch, or one for all where `steps_per_epoch` is given.
        """
        backup = self._backup
        assert backup is not None
        first = self._iterator is None
        if iterator is not self._iterator:
            if not first:
                backup.drawn = 0
            self._iterator = iterator
        backup.before_step()
        if first and self._skip:
            for _ in range(backup.drawn):
                next(iterator)
        return self._train_function(iterator)


class _Start:
    """Tells `fit` the epoch and step to begin with, as Keras' own backup would."""

    def __init__(self, backup: Backup) -> None:
        self._backup = backup

    def maybe_load_initial_counters_from_ckpt(
        self, steps_per_epoch: Optional[int], initial_epoch: int, mode: Any = None
    ) -> Tuple[int, int]:
        """Returns the epoch and the step within it."""
        epoch, step = self._backup.epoch, self._backup.step
        if steps_per_epoch is not None and step >= steps_per_epoch:
            epoch, step = epoch + 1, 0
        return max(epoch, initial_epoch), step
