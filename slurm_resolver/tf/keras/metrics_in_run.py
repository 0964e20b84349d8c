"""Metrics of Keras 3 in training loops of one's own, with `strategy.run`.

At the end of `strategy.run`, the replicas add up what each of them has added to metrics, so that
these have the same values in all workers, and one worker alone can read them.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import tensorflow as tf

from slurm_resolver.tf.keras.replica_step import Additions, current_additions
from slurm_resolver.tf.private_names import Method


@contextlib.contextmanager
def _adding_up() -> Iterator[None]:
    """Adds up what a replica's function adds to metrics in the block."""
    additions = Additions()
    with additions.running():
        yield
    additions.add_changes()


@tf.autograph.experimental.do_not_convert  # type: ignore[untyped-decorator]
def adding_up(function: Any) -> Any:
    """Makes a replica's function of `strategy.run` add up metrics at its end.

    A tf.function stays as it is, because TensorFlow traces it in another way.
    """
    if isinstance(function, type(tf.function(len))):
        return function

    def wrapped(*args: Any, **kwargs: Any) -> Any:
        with _adding_up():
            return function(*args, **kwargs)

    return wrapped


def update_state(original: Method, metric: Any, *args: Any, **kwargs: Any) -> None:
    """Updates a metric in a replica."""
    additions = current_additions()
    if additions and additions.sees_updates():
        with additions.noting(metric):
            original(metric, *args, **kwargs)
    else:
        with _adding_up():
            update_state(original, metric, *args, **kwargs)


def result(original: Method, metric: Any) -> Any:
    """Returns a metric's result; in `strategy.run`, with what all replicas have added so far."""
    additions = current_additions()
    return additions.result(original, metric) if additions else original(metric)


def reset_state(original: Method, metric: Any) -> None:
    """Resets a metric, and in `strategy.run` what has been added to it so far."""
    additions = current_additions()
    if additions:
        additions.reset(original, metric)
    else:
        original(metric)
