"""`BackupAndResume`: Keras' fit, saved on a signal and resumed at the next step."""

from __future__ import annotations

import sys
from typing import Any, Optional

from slurm_resolver.errors import ResumeError
from slurm_resolver.tf.training.keras_fit import Fit, Keras2Fit, do_nothing
from slurm_resolver.tf.training.termination import TerminationConfig


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

    async_safe = True  # Keras 3: lets other callbacks run in parallel
    _supports_tf_logs = True  # Keras 2: no step waits for logs, which are not read

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
            state: further objects for the `tf.train.Checkpoint`.
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
            ResumeError: outside of the `fit` of a model of Keras 3 or Keras 2.
            KerasError: for a Keras 3 that is too old.
        """
        # Keras does not pass the other callbacks and the data to a callback. They are variables of
        # `fit`, the caller.
        frame: Any = sys._getframe(1)
        while frame is not None:
            found = frame.f_locals
            if found.get("self") is self.model and hasattr(found.get("callbacks"), "callbacks"):
                for kind in (Fit, Keras2Fit):
                    if kind.data_name in found:
                        kind(self, found["callbacks"], found[kind.data_name])
                        return
            frame = frame.f_back
        raise ResumeError(
            "BackupAndResume was called outside of the fit of a model of Keras 3 or Keras 2: "
            f"{type(self.model).__module__}.{type(self.model).__name__}. For another training use "
            "ResumableLoop."
        )

    on_train_end = on_epoch_begin = on_epoch_end = on_batch_begin = on_batch_end = do_nothing
    on_train_batch_begin = on_train_batch_end = on_test_begin = on_test_end = do_nothing
    on_test_batch_begin = on_test_batch_end = on_predict_begin = on_predict_end = do_nothing
    on_predict_batch_begin = on_predict_batch_end = do_nothing
    # Keras 2 asks whether to call a callback for each batch.
    _implements_train_batch_hooks = _implements_test_batch_hooks = do_nothing
    _implements_predict_batch_hooks = do_nothing
