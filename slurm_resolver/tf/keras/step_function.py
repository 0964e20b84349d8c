"""Keras 3's train, test and predict functions on several workers.

Keras calls such a function for each step, with a list of batches or an iterator. The function
computes the model's `train_step`, `test_step` or `predict_step` in each replica, and returns a
result that is the same in all workers.

Once for each call of `fit`, before the first step, `calls` lets all workers begin together, with
equal models and callbacks, and `division` chooses which rows this worker reads. Then, for each kind
of batch, these come one after another:

    TracedStep.planned    traces the model's step as in one process, and plans it (`partition`)
    ReplicaStep.compute   in each replica, takes the replica's rows of the batch, and writes the
                          plan for them; the first collective also compares the workers' batches
                          and learning rates (`step_comparison`)
"""

from __future__ import annotations

import contextlib
import functools
import itertools
import math
from collections.abc import Iterator

import tensorflow as tf
from tensorflow.types.experimental import ConcreteFunction, PolymorphicFunction

from slurm_resolver.coordination.progress import COMPILING
from slurm_resolver.errors import FitError
from slurm_resolver.log import warn_once
from slurm_resolver.tf.exchange import STEP, STEP_OF_CALLBACK
from slurm_resolver.tf.keras.compiled import CompiledStep, compiled
from slurm_resolver.tf.keras.division import WorkerData
from slurm_resolver.tf.keras.files.callback_files import is_in_hook
from slurm_resolver.tf.keras.outside_variables import refresh_copies
from slurm_resolver.tf.keras.protocols import Model, Strategy
from slurm_resolver.tf.keras.replica_step import ReplicaStep
from slurm_resolver.tf.keras.replicas import of_first_replica, run_in_replicas
from slurm_resolver.tf.keras.sharing import (
    Share,
    Structure,
    count_rows,
    has_rows,
    own_share,
    share,
    type_of,
    without_optionals,
)
from slurm_resolver.tf.keras.step_comparison import Comparison
from slurm_resolver.tf.keras.traced_step import (
    Multiples,
    NotWrittenError,
    PlannedStep,
    TracedStep,
    as_tensor,
    draws_by_seed,
    has,
    type_of_rows,
)
from slurm_resolver.tf.keras.verification import Verification
from slurm_resolver.tf.keras.weight_comparison import compare_weights
from slurm_resolver.tf.reporter import noting, reporter

_COMPARED = 64  # steps of `train_on_batch` between two comparisons of the weights


class StepFunction:
    """A model's `train_function`, `test_function` or `predict_function`."""

    _own_steps = 0  # of `train_on_batch`
    _rows: int | tf.Tensor = 0  # of its first batch

    def __init__(self, strategy: Strategy, model: Model, kind: str) -> None:
        self._model = model
        self._kind = kind
        self._strategy = strategy
        self._step = TracedStep(model, kind)
        self._replica_step = functools.partial(
            ReplicaStep,
            strategy.sharing,
            Comparison(strategy, model),
            strategy.waited if kind == "train" else None,
        )
        steps = strategy.verified_steps
        self._verification = Verification(model, kind, steps) if steps else None
        self._run = CompiledStep(self._find_graph)
        # What writes the graphs, by the multiples.
        self._writers: dict[Multiples | None, PolymorphicFunction] = {}

    def __call__(self, data: list[Structure] | Iterator[Structure]) -> Structure:
        """Returns the outputs for a list of batches, or the logs of an iterator's next steps."""
        count = len(data) if isinstance(data, list) else self._model.steps_per_execution
        if self._kind == "train" and not self._strategy.workers.call:
            self._compare_in_own_loop()
        reporter.begin_step(count)
        results: list[Structure] = []
        try:
            with self._strategy.workers.step(STEP_OF_CALLBACK if is_in_hook() else STEP):
                batches = itertools.islice(noting(data), count)
                results = [self._compute(self._as_share(batch)) for batch in batches]
                if not results:
                    raise StopIteration
        finally:
            reporter.end_step(len(results))
        if len(results) == 1 or not isinstance(data, list):
            return results[-1]
        return tf.nest.map_structure(lambda *parts: tf.concat(parts, axis=0), *results)

    def _as_share(self, batch: Structure) -> Share:
        """Returns what this worker has read, or is given by `train_on_batch`, as a share."""
        if isinstance(batch, Share):
            return batch
        if isinstance(tf.nest.flatten(batch)[0], tf.distribute.DistributedValues):
            return own_share(batch)
        shared = share(tf.nest.map_structure(as_tensor, batch))
        rows = count_rows(shared.batch)
        self._rows = self._rows or rows
        if rows != self._rows:  # one process traces the step again
            _warn_of_sequences(self._planned(shared, self._multiples_of(shared)))
        return shared

    def _compare_in_own_loop(self) -> None:
        """Compares the workers' models in a loop of `train_on_batch`, which has no epochs.

        It does so before the steps 1, 2, 4, … and then every _COMPARED steps.
        """
        step = self._own_steps = self._own_steps + 1
        if step % _COMPARED and step & (step - 1):
            return
        compare_weights(self._model, f"before step {step} of train_on_batch")

    def choose_data(self, data: WorkerData) -> None:
        """Lets the worker read whole batches if a step must compute them."""
        if data.size is None:
            return
        marks = {"rows": tf.TensorSpec([data.size, 0])}  # as of the first batch
        first = data.shares.element_spec._replace(marks=marks)
        is_whole = self._runs_eagerly() or self._verification or self._planned(first, ()).reason
        if not is_whole:
            with contextlib.suppress(FitError):  # it could not be written
                self._find_graph(first)
                return
        data.undivide()

    def _runs_eagerly(self) -> bool:
        return bool(self._model.run_eagerly or tf.config.functions_run_eagerly())

    def _compute(self, batch: Share) -> Structure:
        """Returns the result of a step; the first ones may be compared with one process."""
        if self._runs_eagerly():
            return self._run_eagerly(batch)
        if not self._verification:
            return self._run(batch)
        planned = self._planned(batch, self._multiples_of(batch))
        return self._verification.compute(planned, batch, functools.partial(self._run, batch))

    def _multiples_of(self, batch: Share) -> Multiples | None:
        """Returns how many times N rows each tensor has; None if all workers compute all rows.

        N is the greatest common divisor of the numbers of rows. There are no multiples if all
        tensors have N rows. Only those of the first batch that can be divided are used.
        """
        replicas = self._strategy.sharing.replicas
        values = tf.nest.flatten(of_first_replica(self._strategy, batch).batch)
        numbers = [value.shape[0] for value in values if has_rows(value)]
        if replicas == 1 or self._step.fault or len(set(numbers)) < 2:
            return ()
        count = math.gcd(*numbers)
        multiples = tuple(number // count for number in numbers)
        can_divide = count >= replicas and all(multiples) and "own" not in batch.marks
        if multiples in self._writers or (can_divide and not any(self._writers)):
            return multiples
        return None

    def _find_graph(self, batch: Share) -> ConcreteFunction:
        """Returns the graph of a step; it is of whole batches if it cannot be written otherwise.

        Args:
            batch: of tensors; or their types, whose graph is for any number of rows, as the first.
        """
        multiples = self._multiples_of(batch)
        spec = batch
        is_first = multiples not in self._writers or isinstance(batch.digest, tf.TensorSpec)
        if is_first and "own" not in batch.marks:
            planned = self._planned(batch, multiples)
            if self._writers.keys() - {multiples}:  # only some batches can be divided
                _warn_of_sequences(planned)
            if planned.takes_any_rows:
                spec = tf.nest.map_structure(type_of_rows, batch)._replace(digest=batch.digest)
        write = compiled(functools.partial(self._write_step, multiples))
        try:
            return self._writers.setdefault(multiples, write).get_concrete_function(spec)
        except NotWrittenError as error:
            self._step.fault = str(error)
            self._writers.clear()
            return self._find_graph(batch)

    def _write_step(self, multiples: Multiples | None, batch: Share) -> Structure:
        """Writes a step of all replicas, and returns its result, which is the same in all of them.

        Args:
            batch: of which the graph's inputs are made.
        """
        reporter.enter(COMPILING)
        planned = self._planned(batch, multiples)
        if planned.reason is not None:
            self._check_whole(batch, planned.reason)
        refresh_copies(self._strategy, planned.copies)
        return run_in_replicas(
            self._strategy,
            lambda batch: self._replica_step(batch).compute(planned),
            batch,
        )

    def _planned(self, batch: Share, multiples: Multiples | None) -> PlannedStep:
        """Returns the model's step for batches like this one, of tensors or their types."""
        first = of_first_replica(self._strategy, batch)
        spec = tf.nest.map_structure(
            lambda value: (
                type_of(value) if batch.rows is None else type_of_rows(value, batch.rows.shape[0])
            ),
            without_optionals(first.batch),
        )
        return self._step.planned(spec, multiples)

    def _run_eagerly(self, batch: Share) -> Structure:
        """Returns the result of a step that computes all rows in each worker, as one process."""
        self._check_whole(batch, "it runs eagerly")
        whole = run_in_replicas(
            self._strategy,
            lambda batch: self._replica_step(batch).whole_batch(),
            batch,
        )
        return self._step.run_eagerly(without_optionals(whole))

    def _check_whole(self, batch: Share, reason: str) -> None:
        """Says why every worker computes whole batches, or cannot."""
        if self._strategy.sharing.replicas == 1:
            return
        some = " for some batches" if len(self._writers) > 1 else ""
        text = (
            f"the {self._kind} step of {self._model.name!r} cannot be split{some}: "
            f"{reason.rstrip('.')}."
        )
        if "own" in batch.marks:
            raise FitError(
                f"{text} Each worker reads its own data, so none has a whole batch. Use "
                "AutoShardPolicy.AUTO."
            )
        if batch.rows is not None:
            raise FitError(
                f"{text} The workers have already divided the data: change this before the call "
                "of fit, evaluate or predict."
            )
        reporter.whole_steps |= not some
        warn_once(f"{text} Every worker computes whole batches, as one process does.")


def _warn_of_sequences(planned: PlannedStep) -> None:
    """Warns if there are more graphs of a step than in one process, or fewer.

    Each graph begins the sequences of TensorFlow's seeds again.
    """
    if has(planned.function.graph, draws_by_seed):
        warn_once(
            "the batches have different numbers of rows, so the step draws other random numbers "
            "than in one process: draw them with a keras.random.SeedGenerator"
        )
