"""Compares in each step what has to be the same in all workers: the batch and the learning rate.

Each replica adds a row to a table, in a collective that the step needs anyway. A difference ends
the step in all workers, and the table says which worker has what::

                   learning rate      x                  y
    replica 0      0.01, …            12345, 1, EQUAL    67890, 1, EQUAL
    replica 1      0.01, …            12345, 1, EQUAL    67890, 1, EQUAL

An entry is a fingerprint of a tensor (`sharing.fingerprint`): its digest, whether it tells the rows
of the batch apart, and its origin, which says whether it has to be the same.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import tensorflow as tf

from slurm_resolver.errors import FitError
from slurm_resolver.log import tell_once
from slurm_resolver.tf.exchange import MARK
from slurm_resolver.tf.keras.differences import REMEDY, REMEDY_OF_DATA, difference
from slurm_resolver.tf.keras.origins import Origin
from slurm_resolver.tf.keras.protocols import Model, Strategy
from slurm_resolver.tf.keras.sharing import Share, names_of_tensors
from slurm_resolver.tf.reporter import reporter

_SAME_RATE = 1e-5  # relative: processors may round a schedule's result differently


class Comparison:
    """What the workers compare in the steps of one function of a model.

    A table has one row for each replica: the learning rate in the form of a fingerprint, and a
    fingerprint of each tensor of the batch (see `sharing.fingerprint`). Tensors that may differ,
    such as augmented images, end no step. At the end of an epoch, at least one tensor that tells
    the rows apart must have been the same in every step.
    """

    _names: Sequence[str]  # of the batch's tensors

    def __init__(self, strategy: Strategy, model: Model) -> None:
        strategy.comparisons.add(self)
        self._strategy = strategy
        self._model = model
        # The origins of the columns that differed in a step, and the columns that were the same in
        # it and told the rows apart.
        self._differed: dict[int, float] = {}
        self._told: set[int] = set()

    def row(self, replica: int, batch: Share) -> tf.Tensor:
        """Returns what a replica adds to the table for a batch, as float32."""
        optimizer = getattr(self._model, "optimizer", None)
        rate = tf.cast(getattr(optimizer, "learning_rate", 0.0), tf.float32)
        of_rate = [[tf.reshape(rate, []), 0.0, float(Origin.EQUAL)]]
        self._names = names_of_tensors(batch)
        of_replica = tf.one_hot(replica, self._strategy.sharing.replicas)[:, None, None]
        return of_replica * tf.concat([of_rate, batch.digest], axis=0)

    def check(self, table: tf.Tensor) -> None:
        """Ends the step if the rows of the table differ in what has to be the same."""
        with tf.device("/cpu:0"):
            same = tf.reduce_all(tf.equal(table, table[0]))
            # The second branch calls Python, and is rarely necessary.
            tf.cond(same, lambda: True, lambda: tf.numpy_function(self._look, [table], tf.bool))

    def _look(self, table: npt.NDArray[np.float32]) -> bool:
        """Notes which columns differ; raises FitError if one of them has to be the same.

        A worker that is gone ends NCCL's sums with any numbers.
        """
        workers = self._strategy.workers
        workers.refuse_loss()
        columns = table[:: self._strategy.sharing.local_replicas].transpose(1, 2, 0)
        for place, (values, tells, origins) in enumerate(columns):
            if np.allclose(values, values[0], 0.0 if place else _SAME_RATE, 0.0, equal_nan=True):
                if tells[0]:
                    self._told.add(place)
            elif origins[0] == Origin.EQUAL:
                name = f"the digest of {self._names[place - 1]}" if place else "the learning rate"
                error = difference(
                    workers,
                    reporter.where(),
                    name,
                    list(map(str, values)),
                    REMEDY_OF_DATA if place else REMEDY,
                )
                raise FitError(f"{MARK}{error}")
            else:
                self._differed[place] = origins[0]
        return True

    def end(self) -> None:
        """Raises FitError if no tensor of the epoch's batches shows that they were the same."""
        differed = self._differed
        shown = self._told.difference(differed)
        self._differed = {}
        self._told = set()
        if not differed or shown:
            return
        names = ", ".join(dict.fromkeys(self._names[place - 1] for place in sorted(differed)))
        if Origin.PYTHON in differed.values():
            raise FitError(
                f"the batches of the workers differ in {names}, which Python makes, and nothing "
                f"else shows that they have the same rows. {REMEDY_OF_DATA}"
            )
        tell_once(
            f"the batches differ from worker to worker in {names}, which random operations change; "
            "whether the workers read them in the same order cannot be checked"
        )
