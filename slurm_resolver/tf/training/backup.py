"""`BackupAndResume`: Keras' fit, saved on a signal and resumed at the very step."""

from __future__ import annotations

from typing import Any, Optional

from slurm_resolver.errors import ResumeError
from slurm_resolver.tf import keras2, keras3
from slurm_resolver.tf.training.fit import Fit
from slurm_resolver.tf.training.resume_position import KeptBatchSize
from slurm_resolver.tf.training.termination import TerminationConfig


def _nothing(*args: Any, **kwargs: Any) -> None:
    """What Keras calls in every callback, and is of no interest here."""


class BackupAndResume:
    """Saves the training on a signal, and lets the next `fit` go on at the very step after it.

    ::

        backup = BackupAndResume("checkpoints", termination_config(resolver), save_every=500)
        model.fit(data, epochs=10, steps_per_epoch=200, callbacks=[backup, early_stopping])

    A callback for models of Keras 3, from 3.10 on, and of Keras 2 (tf_keras, or the one inside
    TensorFlow 2.15). A run that was preempted ends with the weights of one that was not, and with
    its history. Kept are

    - the model, its optimizer, what dropout draws next (Keras 3), the epoch and the step;
    - the metrics of the epoch that was interrupted, validation included: where a signal comes
      during the validation, only that is done again;
    - the other callbacks, History among them: the attributes that `fit` has changed and that are
      numbers, strings, NumPy arrays, or lists, tuples, sets and dicts of these. That is all of
      EarlyStopping, ReduceLROnPlateau and ModelCheckpoint. Options that are given anew count.
      A callback that has changed anything else is left as it is: those that write to files, such
      as TensorBoard and CSVLogger. Each worker gets what the first one had.

    The batches have to come in the same order each time: seed whatever shuffles. The batches that
    were trained on already are read once more and skipped. Keras 3 also reproduces the order of a
    `tf.data.Dataset` that is shuffled anew in each epoch; for Keras 2, or a PyDataset that is
    shuffled, use ``shuffle(n, seed=1).repeat()`` with `steps_per_epoch`. The state of a Python
    generator and of random generators outside the model is not kept.
    """

    async_safe = True  # Keras 3: this one does not keep others from running beside the training
    _supports_tf_logs = True  # Keras 2: it does not read them, so that no step waits for the device

    def __init__(
        self,
        directory: str,
        termination: Optional[TerminationConfig] = None,
        *,
        save_every: Optional[int] = None,
        max_to_keep: int = 2,
        skip: bool = True,
        keep_batch_size: Optional[KeptBatchSize] = "global",
        **state: Any,
    ) -> None:
        """Prepares; the restore is at the beginning of `fit`.

        Args:
            directory: for this training's checkpoints; one that all nodes share.
            termination: what `termination_config` returned; None makes one with its defaults.
            save_every: also save after so many steps: what a crash can lose.
            max_to_keep: how many checkpoints to keep.
            skip: whether to skip the batches that were trained on before; False, with
                `steps_per_epoch`, if the data begins after them
                (`slurm_resolver.tf.training.checkpoint.counters` tells where that is).
            keep_batch_size: what stays the same when the training goes on with another number of
                workers: the "global" batch size, so that steps stay what they were; or that
                "per_replica", so that the global one grows and shrinks with the workers, and the
                position in the epoch is counted in samples. The data has to be batched so, or it is
                a ResumeError; None takes it as it is.
            state: more that a `tf.train.Checkpoint` can hold.
        """
        self.model: Any = None
        self.params: Any = None
        self._directory = directory
        self._termination = termination
        self._save_every = save_every
        self._max_to_keep = max_to_keep
        self._skip = skip
        self._keep_batch_size = keep_batch_size
        self._state = state

    def set_model(self, model: Any) -> None:
        """Takes the model, of either Keras."""
        self.model = model

    def set_params(self, params: Any) -> None:
        """Takes the counts of epochs and steps."""
        self.params = params

    def on_train_begin(self, logs: Any = None) -> None:
        """Restores, and tells `fit` where to begin.

        Raises:
            ResumeError: for a model of no Keras that is known here, or outside of its `fit`.
            KerasError: for a Keras 3 that is too old.
        """
        for kind in (keras3.Keras3, keras2.Keras2):
            if kind.made(self.model):
                fit = Fit(kind(self.model), self.model, self.params["epochs"], self._skip)
                break
        else:
            raise ResumeError(
                f"{type(self.model).__module__}.{type(self.model).__name__}: expected a model of "
                "Keras 3 or of Keras 2. For another training use ResumableLoop."
            )
        fit.begin(
            self,
            self._directory,
            self._termination,
            self._state,
            self._save_every,
            self._max_to_keep,
            self._keep_batch_size,
        )

    on_train_end = on_epoch_begin = on_epoch_end = on_batch_begin = on_batch_end = _nothing
    on_train_batch_begin = on_train_batch_end = on_test_begin = on_test_end = _nothing
    on_test_batch_begin = on_test_batch_end = on_predict_begin = on_predict_end = _nothing
    on_predict_batch_begin = on_predict_batch_end = _nothing
    # Keras 2 asks whether to call a callback for each batch.
    _implements_train_batch_hooks = _implements_test_batch_hooks = _nothing
    _implements_predict_batch_hooks = _nothing
