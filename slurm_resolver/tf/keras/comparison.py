"""Compares in each step what has to be the same in all workers: the batch and the learning rate.

Each replica adds a row to a table, in a collective that the step needs anyway. A difference ends
the step in all workers, and the table says which worker has what.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Callable, TypeVar

import numpy as np
import tensorflow as tf

from slurm_resolver.errors import FitError
from slurm_resolver.log import tell_once
from slurm_resolver.tf.exchange import MARK, Workers
from slurm_resolver.tf.keras.origins import Origin
from slurm_resolver.tf.keras.sharing import FINGERPRINT

T = TypeVar("T")

DIFFERENCE = "the workers differ in this step"  # in the error of a step that is ended here
_SAME_RATE = 1e-5  # relative: processors may round a schedule's result differently
_REMEDY = (
    "Expected the same global batches in the same order in every worker, of which each takes its "
    "rows. Seed whatever shuffles or generates the data alike in all workers, such as "
    "keras.utils.set_random_seed(1) and numpy.random.default_rng(1), and sort the names of files. "
    "Data that each worker has of its own needs AutoShardPolicy.OFF."
)


def call_outside(function: Callable[[], T]) -> T:
    """Calls a function outside of the graph that is being traced, and of the strategy's scope.

    Only another thread is outside of both.
    """
    with ThreadPoolExecutor(max_workers=1) as thread:
        return thread.submit(function).result()


class Comparison:
    """What the workers compare in the steps of one function of a model.

    A table has one row for each replica: the learning rate in the form of a fingerprint, and a
    fingerprint of each tensor of the batch (see `sharing.fingerprint`). Tensors that may differ,
    such as augmented images, end no step. At the end of an epoch, at least one tensor that tells
    the rows apart must have been the same in every step.
    """

    def __init__(self, strategy: Any, model: Any, kind: str) -> None:
        self._replicas = strategy.sharing.replicas
        self._local = strategy.sharing.local
        self._workers: Workers = strategy.workers
        self._model = model
        self._has_rate = kind == "train"
        self._names: list[str] = []  # of the batch's tensors
        self._table: Any = None  # the last step's
        # The numbers of steps in which each fingerprint differed, and in which it was the same and
        # told the rows apart.
        self._seen: Any = None

    def row(self, replica: int, digest: Any | None, names: Sequence[str]) -> Any:
        """Returns what a replica adds to the table, as float32."""
        self._names = list(names)
        rate = getattr(self._model.optimizer, "learning_rate", 0.0) if self._has_rate else 0.0
        rate = tf.reshape(tf.cast(rate, tf.float32), [])
        row = tf.stack([[rate, 0.0, float(Origin.EQUAL)]])
        if digest is not None:
            row = tf.concat([row, digest], axis=0)
        return tf.one_hot(replica, self._replicas)[:, None, None] * row

    def check(self, table: Any) -> None:
        """Ends the step if the rows of the table differ in what has to be the same."""
        count = 1 + len(self._names)
        with tf.device("/cpu:0"):
            if self._seen is None or self._seen.shape[0] != count:
                call_outside(functools.partial(self._make_variables, count))
            values, tells, origins = tf.unstack(table, axis=2)
            near = tf.abs(values[0]) * tf.one_hot(0, count, on_value=_SAME_RATE)
            differ = tf.reduce_any(tf.abs(values - values[0]) > near, axis=0)
            wrong = differ & tf.equal(origins[0], float(Origin.EQUAL))
            told = ~differ & (tells[0] > 0)
            counts = tf.cast(tf.stack([differ, told], axis=1), tf.float32)
            noted = [self._table.assign(table), self._seen.assign_add(counts)]
            with tf.control_dependencies(noted):
                tf.debugging.Assert(~tf.reduce_any(wrong), [MARK + DIFFERENCE])

    def _make_variables(self, count: int) -> None:
        with tf.device("/cpu:0"):
            table = tf.zeros([self._replicas, count, FINGERPRINT])
            self._table = tf.Variable(table, trainable=False)
            self._seen = tf.Variable(tf.zeros([count, 2]), trainable=False)

    def describe(self, where: str) -> str:
        """Returns which worker has what after a step has failed; `where` is `Reporter.where()`."""
        where = f" {where}" if where else ""
        table = self._table.numpy()[:: self._local]
        rates = table[:, 0, 0]
        if not np.allclose(rates, rates[0], rtol=_SAME_RATE, atol=0.0, equal_nan=True):
            values = self._workers.holders([f"{rate:.6g}" for rate in rates])
            return (
                f"the learning rate differs from worker to worker{where}: {values}. Change it in "
                "all workers, or in none: leave out what lets one worker alone do it, such as a "
                "callback in `if task_id == 0:`."
            )
        digests = table[:, 1:, 0]
        wrong = (digests != digests[0]).any(axis=0) & (table[0, 1:, 2] == Origin.EQUAL)
        place = int(wrong.argmax())  # the first of them
        own = digests[:, place].tolist()
        distinct = list(dict.fromkeys(own))
        letters = [chr(ord("A") + min(distinct.index(digest), 25)) for digest in own]
        groups = self._workers.holders([f"batch {letter}" for letter in letters])
        return (
            f"the batch differs from worker to worker{where}, in {self._names[place]}: {groups}. "
            f"{_REMEDY}"
        )

    def end(self) -> None:
        """Raises FitError if no tensor of the epoch's batches shows that they were the same."""
        if self._seen is None:
            return
        counts = self._seen.numpy()[1:]  # after the learning rate
        self._seen.assign(tf.zeros_like(self._seen))
        differed = counts[:, 0] > 0
        shown = (counts[:, 1] > 0) & ~differed
        if not differed.any() or shown.any():
            return
        origins = self._table.numpy()[0, 1:, 2]
        names = ", ".join(dict.fromkeys(itertools.compress(self._names, differed)))
        if (origins[differed] == Origin.PYTHON).any():
            raise FitError(
                f"the batches of the workers differ in {names}, which Python makes, and nothing "
                f"else shows that they have the same rows. {_REMEDY}"
            )
        tell_once(
            f"the batches differ from worker to worker in {names}, which random operations change; "
            "whether the workers read them in the same order cannot be checked"
        )
