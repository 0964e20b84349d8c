"""Compares in each step what has to be the same in all workers: the batch and the learning rate.

Each replica adds a row to a table, in a collective that the step needs anyway. A difference ends
the step in all workers, and the table says which worker has what.
"""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import Any, Callable, Dict, List, Optional, Sequence, Tuple, TypeVar

import numpy as np
import tensorflow as tf

from slurm_resolver.errors import FitError
from slurm_resolver.log import tell_once
from slurm_resolver.tf.exchange import MARK
from slurm_resolver.tf.keras.origins import Origin
from slurm_resolver.tf.keras.sharing import FINGERPRINT

T = TypeVar("T")

DIFFERENCE = "the workers differ in this step"  # in the error of a step that is ended here
_LISTED = 4  # workers that an error names
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

    A table has one row for each replica: the learning rate, and a fingerprint of each tensor of the
    batch (see `sharing.fingerprint`). Tensors that may differ, such as augmented images, end no
    step. At the end of an epoch, at least one tensor that tells the rows apart must have been the
    same in every step.
    """

    def __init__(self, strategy: Any, model: Any, kind: str) -> None:
        self._replicas = strategy.sharing.replicas
        self._local = strategy.sharing.local
        self._workers: List[str] = strategy.workers.names
        self._model = model
        self._has_rate = kind == "train"
        self._names: List[str] = []  # of the batch's tensors
        self._current: Optional[Tuple[tf.Variable, tf.Variable]] = None

    def row(self, replica: int, digest: Optional[Any], names: Sequence[str]) -> Any:
        """Returns what a replica adds to the table: float32, of shape (replicas, columns)."""
        self._names = list(names)
        row = tf.reshape(tf.cast(self._learning_rate(), tf.float32), [1])
        if digest is not None:
            row = tf.concat([row, tf.reshape(digest, [-1])], axis=0)
        return tf.one_hot(replica, self._replicas)[:, None] * row

    def _learning_rate(self) -> Any:
        rate = getattr(self._model.optimizer, "learning_rate", None) if self._has_rate else None
        return 0.0 if rate is None else tf.convert_to_tensor(rate)

    def check(self, table: Any) -> None:
        """Ends the step if the rows of the table differ in what has to be the same."""
        with tf.device("/cpu:0"):
            count = len(self._names)
            kept, seen = self._variables(count)
            origins = tf.reshape(table[0, 1:], [count, FINGERPRINT])[:, 2]
            equal = tf.reduce_all(tf.equal(table, table[:1]))
            exact = tf.reduce_all(tf.equal(origins, float(Origin.EQUAL)))
            # The work of the second branch is rarely necessary.
            tf.cond(
                tf.logical_and(equal, exact),
                lambda: True,
                lambda: self._look(table, kept, seen),
            )

    def _look(self, table: Any, kept: tf.Variable, seen: tf.Variable) -> Any:
        columns = tf.reshape(table[:, 1:], [self._replicas, len(self._names), FINGERPRINT])
        same = tf.reduce_all(tf.equal(columns[:, :, 0], columns[:1, :, 0]), axis=0)
        tells = tf.logical_and(same, columns[0, :, 1] > 0)
        varies = columns[0, :, 2] < float(Origin.EQUAL)
        rates = table[:, 0]
        near = tf.abs(rates - rates[0]) <= _SAME_RATE * tf.abs(rates[0])
        same_rate = tf.reduce_all(tf.logical_or(near, tf.math.is_nan(rates)))
        counts = tf.stack([tf.cast(~same, tf.float32), tf.cast(tells, tf.float32)], axis=1)
        noted = [kept.assign(table, read_value=False), seen.assign_add(counts, read_value=False)]
        with tf.control_dependencies([operation for operation in noted if operation is not None]):
            fine = tf.logical_and(same_rate, tf.reduce_all(tf.logical_or(same, varies)))
            tf.debugging.Assert(fine, [MARK + DIFFERENCE])
        return True

    def _variables(self, count: int) -> Tuple[tf.Variable, tf.Variable]:
        """Returns the last table that was looked at; and for each tensor two counts.

        They count the steps in which the tensor differed, and those in which it was the same and
        told the rows apart.
        """

        def make() -> Tuple[tf.Variable, tf.Variable]:
            with tf.device("/cpu:0"):
                columns = 1 + count * FINGERPRINT
                table = tf.Variable(tf.zeros([self._replicas, columns]), trainable=False)
                return table, tf.Variable(tf.zeros([count, 2]), trainable=False)

        if self._current is None or self._current[1].shape[0] != count:
            self._current = call_outside(make)
        return self._current

    def describe(self, where: str) -> str:
        """Returns which worker has what after a step has failed; `where` is `Reporter.where()`."""
        assert self._current is not None
        where = f" {where}" if where else ""
        table = self._current[0].numpy()[:: self._local]
        rates = table[:, 0]
        if not np.allclose(rates, rates[0], rtol=_SAME_RATE, atol=0.0, equal_nan=True):
            values = by_worker(self._workers, [f"{rate:.6g}" for rate in rates])
            return (
                f"the learning rate differs from worker to worker{where}: {values}. Change it in "
                "all workers, or in none: leave out what lets one worker alone do it, such as a "
                "callback in `if task_id == 0:`."
            )
        columns = table[:, 1:].reshape([len(table), len(self._names), FINGERPRINT])
        differing = [
            place
            for place in range(len(self._names))
            if len(set(columns[:, place, 0])) > 1 and columns[0, place, 2] == Origin.EQUAL
        ]
        place = differing[0]
        batches = [_letter(columns[:, place, 0], each) for each in range(len(table))]
        groups = by_worker(self._workers, batches)
        return (
            f"the batch differs from worker to worker{where}, in {self._names[place]}: {groups}. "
            f"{_REMEDY}"
        )

    def end(self) -> None:
        """Raises FitError if no tensor of the epoch's batches shows that they were the same."""
        if self._current is None:
            return
        table, seen = self._current
        counts = seen.numpy()
        seen.assign(tf.zeros_like(counts))
        differed = counts[:, 0] > 0
        shown = (counts[:, 1] > 0) & ~differed
        if not differed.any() or shown.any():
            return
        origins = table.numpy()[0, 1:].reshape([-1, FINGERPRINT])[:, 2]
        names = ", ".join(
            dict.fromkeys(name for name, other in zip(self._names, differed) if other)
        )
        if (origins[differed] == Origin.PYTHON).any():
            raise FitError(
                f"the batches of the workers differ in {names}, which Python makes, and nothing "
                f"else shows that they have the same rows. {_REMEDY}"
            )
        tell_once(
            f"the batches differ from worker to worker in {names}, which random operations change; "
            "whether the workers read them in the same order cannot be checked"
        )


def _letter(values: Any, place: int) -> str:
    """Returns the letter of a value among the different ones, such as "batch B"."""
    distinct = list(dict.fromkeys(values.tolist()))
    return f"batch {chr(ord('A') + min(distinct.index(values[place]), 25))}"


def by_worker(names: Sequence[str], values: Sequence[str]) -> str:
    """Returns which worker has which value: "0.1 in worker 0, 0.2 in worker 1, worker 2"."""
    holders: Dict[str, List[str]] = {}
    for name, value in zip(names, values):
        holders.setdefault(value, []).append(name)
    return ", ".join(f"{value} in {_shortened(held)}" for value, held in holders.items())


def _shortened(names: List[str]) -> str:
    more = f" and {len(names) - _LISTED} more" if len(names) > _LISTED else ""
    return ", ".join(names[:_LISTED]) + more
