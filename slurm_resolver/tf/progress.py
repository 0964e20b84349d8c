"""Tells the coordination service what this worker's training does: the epoch, the step, the phase.

The hooks cost microseconds a step: they only write attributes, and a thread reads them.
"""

from __future__ import annotations

import contextlib
import functools
import sys
from typing import Any, Callable, Dict, Iterator, List, Tuple

import tensorflow as tf

from slurm_resolver.cluster.cluster import Cluster
from slurm_resolver.coordination.client import connect
from slurm_resolver.coordination.progress import (
    CALLBACK,
    DATA,
    IDLE,
    MEETING,
    PREPARING,
    START,
    STEP,
    TRAINING,
    VALIDATION,
)
from slurm_resolver.tf.reporter import STALL_SECONDS, reporter

# When the running step asked for data, negative when it got them; and the seconds waited in all.
_variables: List[tf.Variable] = []


def start(resolver: Any, on_stall: str = "report") -> None:
    """Begins to tell the service, where this process is one of several workers of a live step.

    Raises:
        ValueError: for another `on_stall` than "report" and "exit".
    """
    if on_stall not in ("report", "exit"):
        raise ValueError(f'on_stall={on_stall!r}: expected "report" or "exit".')
    cluster = getattr(resolver, "cluster", None)
    if not isinstance(cluster, Cluster) or cluster.service is None or len(cluster.tasks) < 2:
        return
    if not cluster.step.is_live or cluster.was_restarted:
        return
    if not _variables:
        with tf.init_scope(), tf.device("/cpu:0"):
            _variables.extend(tf.Variable(0.0, dtype=tf.float64) for _ in range(2))
        reporter.look = _look
    seconds = cluster.step.stall_seconds
    limit = STALL_SECONDS if seconds is None else float(seconds)
    client = connect(cluster.service, cluster.name_of)
    reporter.start(client, limit, on_stall == "exit")


def _look() -> Tuple[float, float]:
    mark, waited = _variables
    return float(mark.numpy()), float(waited.numpy())


def timed(get: Callable[[], Any]) -> Any:
    """Returns what `get` takes from an iterator in a graph, and notes how long it waits."""
    if not _variables:
        return get()
    mark, waited = _variables
    with tf.device("/cpu:0"):
        asked_at = tf.timestamp()
        noted = mark.assign(asked_at, read_value=False)
    with tf.control_dependencies([noted] if noted is not None else []):
        batch = get()
    tensors = tf.nest.flatten(batch, expand_composites=True)
    with tf.device("/cpu:0"), tf.control_dependencies(tensors[:1]):
        came_at = tf.timestamp()
        waited.assign_add(came_at - asked_at, read_value=False)
        mark.assign(-came_at, read_value=False)
    return batch


def noting(iterator: Iterator[Any]) -> Iterator[Any]:
    """Yields what an iterator has, and notes that this process waits for data meanwhile."""
    while True:
        reporter.enter(DATA)
        try:
            batch = next(iterator)
        except StopIteration:
            return
        finally:
            reporter.enter(STEP)
        yield batch


@contextlib.contextmanager
def meeting(name: str) -> Iterator[None]:
    """Waits in the block until all workers call a method of this name."""
    reporter.enter(MEETING, name)
    try:
        yield
    finally:
        reporter.enter(IDLE, "")


@contextlib.contextmanager
def reporting(name: str, arguments: Dict[str, Any]) -> Iterator[None]:
    """Reports the steps of a `fit`, `evaluate` or `predict`, by a callback before all others.

    Args:
        name: of the method.
        arguments: the method's; the callback is put among them.
    """
    hook, given = _hooks()(name), arguments.get("callbacks")
    shared = getattr(given, "callbacks", None)  # a CallbackList, which may be used again
    if isinstance(shared, list):
        shared.insert(0, hook)
    else:
        others = given if isinstance(given, (list, tuple)) else [given] if given else []
        arguments["callbacks"] = [hook, *others]
    try:
        yield
    finally:
        if isinstance(shared, list):
            shared.remove(hook)
        reporter.enter(IDLE, "")


@functools.cache  # once: Keras need not be imported
def _hooks() -> Any:
    class SlurmResolverProgress(sys.modules["keras"].callbacks.Callback):  # type: ignore[misc]
        def __init__(self, name: str) -> None:
            super().__init__()
            self._stage = TRAINING if name == "fit" else name

        def on_train_begin(self, logs: Any = None) -> None:
            reporter.enter(PREPARING, TRAINING)

        def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
            reporter.epoch, reporter.step = epoch + 1, 0
            reporter.enter(START)

        def on_test_begin(self, logs: Any = None) -> None:
            reporter.step = 0
            reporter.enter(START, VALIDATION if self._stage == TRAINING else self._stage)

        def on_test_end(self, logs: Any = None) -> None:
            reporter.enter(CALLBACK, self._stage)

        def on_predict_begin(self, logs: Any = None) -> None:
            reporter.step = 0
            reporter.enter(START, self._stage)

        def on_train_batch_begin(self, batch: int, logs: Any = None) -> None:
            reporter.step = batch + 1

        on_test_batch_begin = on_train_batch_begin

        def on_predict_batch_begin(self, batch: int, logs: Any = None) -> None:
            reporter.step = batch + 1
            reporter.enter(DATA)

    return SlurmResolverProgress
