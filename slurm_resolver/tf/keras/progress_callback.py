"""Reports the progress of `fit`, `evaluate` and `predict`, by a callback of Keras."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

from slurm_resolver.coordination.progress import (
    CALLBACK,
    DATA,
    IDLE,
    MEETING,
    PREPARING,
    START,
    TRAINING,
    VALIDATION,
)
from slurm_resolver.tf.keras.protocols import Logs
from slurm_resolver.tf.reporter import reporter


@contextlib.contextmanager
def reporting(name: str) -> Iterator[object]:
    """Waits in the block until all workers call `fit`, `evaluate` or `predict`, and runs it.

    Yields a callback that reports the steps; it has to come before all others.
    """
    import keras

    stage = TRAINING if name == "fit" else name

    class SlurmResolverProgress(keras.callbacks.Callback):  # type: ignore[misc]
        def on_train_begin(self, logs: Logs = None) -> None:
            reporter.enter(PREPARING, stage)

        def on_epoch_begin(self, epoch: int, logs: Logs = None) -> None:
            reporter.begin_epoch(epoch + 1)

        def on_test_begin(self, logs: Logs = None) -> None:
            reporter.step = 0
            reporter.enter(START, VALIDATION if name == "fit" else name)

        def on_test_end(self, logs: Logs = None) -> None:
            reporter.enter(CALLBACK, stage)

        def on_train_batch_begin(self, batch: int, logs: Logs = None) -> None:
            reporter.step = batch + 1
            reporter.enter(DATA)

        on_predict_begin = on_test_begin
        on_test_batch_begin = on_train_batch_begin
        on_predict_batch_begin = on_train_batch_begin

    reporter.enter(MEETING, name)
    try:
        yield SlurmResolverProgress()
    finally:
        reporter.enter(IDLE, "")
