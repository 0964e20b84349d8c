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

    def begin_test(logs: Logs) -> None:
        reporter.step = 0
        reporter.enter(START, VALIDATION if name == "fit" else name)

    def begin_batch(batch: int, logs: Logs) -> None:
        reporter.step = batch + 1
        reporter.enter(DATA)

    callback = keras.callbacks.Callback()
    vars(callback).update(
        on_train_begin=lambda logs: reporter.enter(PREPARING, stage),
        on_epoch_begin=lambda epoch, logs: reporter.begin_epoch(epoch + 1),
        on_test_begin=begin_test,
        on_test_end=lambda logs: reporter.enter(CALLBACK, stage),
        on_predict_begin=begin_test,
        on_train_batch_begin=begin_batch,
        on_test_batch_begin=begin_batch,
        on_predict_batch_begin=begin_batch,
    )
    reporter.enter(MEETING, name)
    try:
        yield callback
    finally:
        reporter.enter(IDLE, "")
