"""`BackupAndResume`: Keras' fit, saved on a signal and resumed at the next step."""

from __future__ import annotations

from typing import Any, Optional

from slurm_resolver.errors import ResumeError
from slurm_resolver.tf.training import keras2, keras3
from slurm_resolver.tf.training.fit import Fit
from slurm_resolver.tf.training.termination import TerminationConfig


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
        """Prepares; `fit` restores when it begins.

        Args:
            directory: for this training's checkpoints; one that all nodes share.
            termination: what `termination_config` returned; None makes one with its defaults.
            save_every: also save after so many steps, which a crash can lose at most.
            max_to_keep: how many checkpoints to keep.
            state: more that a `tf.train.Checkpoint` can hold.
        """
        self.model: Any = None
        self.params: Any = None
        self._state = state
        self._options = {
            "directory": directory,
            "termination": termination,
            "save_every": save_every,
            "max_to_keep": max_to_keep,
        }

    def set_model(self, model: Any) -> None:
        """Takes the model, of either Keras."""
        self.model = model

    def set_params(self, params: Any) -> None:
        """Takes the counts of epochs and steps."""
        self.params = params

    def on_train_begin(self, logs: Any = None) -> None:
        """Restores, and sets the epoch and step at which `fit` begins.

        Raises:
            ResumeError: for a model of another Keras, or outside of its `fit`.
            KerasError: for a Keras 3 that is too old.
        """
        model = self.model
        for kind in (keras3.Keras3, keras2.Keras2):
            if kind.made(model):
                fit = Fit(kind(model), model, self.params["epochs"])
                fit.begin(self, self._state, **self._options)
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
