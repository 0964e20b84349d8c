"""A step as a replica computes it: of its rows of the batch, by the plan of the model's step.

The workers either read equal global batches, of which each replica takes its rows; or each worker
reads its own data, which together are the global batch.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from slurm_resolver.tf.keras.replicas import replica_number
from slurm_resolver.tf.keras.sharing import (
    Share,
    Sharing,
    Structure,
    count_rows,
    has_rows,
    without_optionals,
)
from slurm_resolver.tf.keras.step_comparison import Comparison
from slurm_resolver.tf.keras.sums import add_up
from slurm_resolver.tf.keras.traced_step import (
    Multiples,
    NotWrittenError,
    PlannedStep,
    reason_of,
)
from slurm_resolver.tf.keras.waits import timed
from slurm_resolver.tf.partition.collectives import OwnRows, as_sent, own_places, received
from slurm_resolver.tf.partition.emission import AddUp, Emission
from slurm_resolver.tf.partition.values import Tensors, rows

# Those that add up in any order, so that equal steps on equal numbers round differently.
unordered_devices = functools.partial(tf.config.list_logical_devices, "GPU")


def call_traced(planned: PlannedStep, whole: Structure) -> Tensors:
    """Returns the results of the traced step itself, on all rows of a batch, as a list."""
    results = planned.function(without_optionals(whole))
    return list(tf.nest.flatten(results, expand_composites=True))


class ReplicaStep:
    """A step of a replica.

    Args:
        sharing: of the strategy.
        comparison: of the workers' steps.
        waited: a variable to which the seconds are added that this worker waits; or None.
        batch: what this worker has read.
    """

    def __init__(
        self,
        sharing: Sharing,
        comparison: Comparison,
        waited: tf.Variable | None,
        batch: Share,
    ) -> None:
        self._sharing = sharing
        self._comparison = comparison
        self._batch = batch
        self._replica = replica_number()
        self._local = self._replica - sharing.first_replica  # among the replicas of this worker
        self._add_all = timed(
            functools.partial(add_up, bytes_per_bucket=sharing.bytes_per_bucket),
            None if self._local else waited,
        )
        self._compared = [comparison.row(self._replica, batch)]

    def compute(self, planned: PlannedStep) -> Structure:
        """Returns the results of the step, which are the same in all replicas.

        Args:
            planned: the model's step for batches of this kind.

        Raises:
            NotWrittenError: if the plan could not be written by which each replica computes its
                rows.
        """
        try:
            results = self._results(planned)
        except Exception as error:
            if planned.is_whole:
                raise
            raise NotWrittenError(reason_of(error)) from error
        return tf.nest.pack_sequence_as(
            planned.function.structured_outputs, results, expand_composites=True
        )

    def _results(self, planned: PlannedStep) -> Tensors:
        batch = self._batch
        if planned.is_whole:
            part = self.whole_batch()
            total = tf.convert_to_tensor(count_rows(part))
            own = self._own_rows(total, tf.range(total))
        elif "own" in batch.marks:
            part = batch.batch
            own = self._places_of_own_data()
        else:
            part, own = self._part_of_share(planned.multiples or ())
        if planned.plan is None:
            results = call_traced(planned, part)
        else:
            results = Emission(
                planned.plan,
                own,
                self._inputs(planned, part),
                self._of_enough_rows(self._add, own.total),
                self._of_enough_rows(add_up, own.total),
            ).all()
        if planned.is_whole and self._sharing.replicas > 1 and unordered_devices():
            return self._with_variables_of_first(planned, results)
        return results

    def _own_rows(self, total: tf.Tensor, places: tf.Tensor) -> OwnRows:
        """Returns that this replica has these rows of a batch of so many."""
        return OwnRows(
            total,
            places,
            tf.size(places),
            self._replica,
        )

    def _with_variables_of_first(self, planned: PlannedStep, results: Tensors) -> Tensors:
        """Gives all replicas the variables, and the results, of the first one.

        Each of them has computed the whole step. From step to step, they would drift apart.
        """
        function = planned.function
        variables = [
            planned.copies[id(handle)][self._local]
            for handle, inner in zip(function.captured_inputs, function.graph.internal_captures)
            if id(handle) in planned.copies
            and any(reader.type != "ReadVariableOp" for reader in inner.consumers())
        ]
        values = self._of_first([*map(tf.convert_to_tensor, variables), *results])
        for variable, value in zip(variables, values):
            variable.assign(value)
        return values[len(variables) :]

    def _of_first(self, values: Sequence[Any]) -> list[Any]:
        """Returns what the first replica has; strings, ragged and sparse tensors stay as they are.

        The other replicas add -0.0, which leaves also the sign of a zero as it is.
        """
        found = list(values)
        sent = {
            place: as_sent(value)
            for place, value in enumerate(values)
            if isinstance(value, tf.Tensor) and value.dtype != tf.string
        }
        of_replica = [-tf.zeros_like(value) if self._replica else value for value in sent.values()]
        for place, value in zip(sent, self._add(of_replica)):
            found[place] = received(value, found[place].dtype)
        return found

    def _add(self, tensors: Tensors) -> list[tf.Tensor]:
        """Adds up tensors over all replicas; the first call also compares the workers."""
        sums = self._add_all([*tensors, *self._compared])
        for table in sums[len(tensors) :]:
            self._comparison.check(table)
        self._compared.clear()
        return sums[: len(tensors)]

    def _of_enough_rows(self, add: AddUp, total: tf.Tensor) -> AddUp:
        """Returns a function that adds up tensors of a batch with so many rows.

        If all replicas have all rows, because there are too few, the first replica adds them alone.
        """
        if not self._replica or "own" in self._batch.marks:
            return add

        def add_own(tensors: Tensors) -> list[tf.Tensor]:
            return add(
                tf.cond(
                    total < self._sharing.replicas,
                    lambda: [-tf.zeros_like(tensor) for tensor in tensors],
                    lambda: list(map(tf.identity, tensors)),
                )
            )

        return add_own

    def _inputs(self, planned: PlannedStep, part: Structure) -> Tensors:
        """Returns the inputs of the traced step: a batch, and what the step captures."""
        of_replica = {place: copies[self._local].handle for place, copies in planned.copies.items()}
        captured = [of_replica.get(id(value), value) for value in planned.function.captured_inputs]
        arguments = tf.nest.flatten(without_optionals(part), expand_composites=True)
        return [*filter(tf.is_tensor, arguments), *captured]

    def _places_of_own_data(self) -> OwnRows:
        """Returns which rows of the batch this replica has, of data that its worker reads."""
        num_own = count_rows(self._batch.batch)
        of_replica = tf.one_hot(self._replica, self._sharing.replicas, dtype=tf.int32)
        (counts,) = self._add_all([num_own * of_replica])
        places = tf.range(num_own) + tf.reduce_sum(counts[: self._replica])
        return self._own_rows(tf.reduce_sum(counts), places)

    def _part_of_share(self, multiples: Multiples) -> tuple[Structure, OwnRows]:
        """Returns a replica's part of a batch, and which rows these are.

        Replica r of R has the rows r, r + R, r + 2 R, and so on, or all rows if there are fewer
        than R: some operations fail without rows. Of a tensor of m · N rows, it has row i with row
        i mod N.

        Args:
            multiples: m of each tensor that has rows; see `StepFunction`.
        """
        batch = self._batch
        sharing = self._sharing
        count = count_rows(batch.batch if batch.rows is None else batch.rows)
        total = tf.convert_to_tensor(count // multiples[0] if multiples else count)

        def every(step: int, number: int, count: int | tf.Tensor) -> tf.Tensor:
            step = tf.where(total < sharing.replicas, 1, step)
            return tf.range(number % step, count, step)

        own = self._own_rows(total, every(sharing.replicas, self._replica, total))
        of_worker = own
        if batch.rows is not None:  # the worker has no rows but those of its replicas
            read = count_rows(batch.batch)
            of_worker = own._replace(places=every(sharing.local_replicas, self._local, read))
        outer = iter(multiples)

        def part_of(value: Any) -> Any:
            if not has_rows(value):
                return value
            return tf.gather(value, own_places(rows(outer=next(outer, 1)), of_worker))

        with tf.device("/cpu:0"):  # other rows need not be copied to a GPU
            return tf.nest.map_structure(part_of, batch.batch), own

    def whole_batch(self) -> Structure:
        """Returns all rows of the batch, equal in all replicas, and compares the workers.

        Where each worker draws for itself, the rows are those of the first one.
        """
        batch = self._batch.batch
        if "drawn" not in self._batch.marks:
            self._add([])  # which compares them
            return batch
        return tf.nest.pack_sequence_as(batch, self._of_first(tf.nest.flatten(batch)))
