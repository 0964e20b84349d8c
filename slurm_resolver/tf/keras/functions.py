"""Keras 3's train, test and predict functions on several workers."""

from __future__ import annotations

import contextlib
from typing import Any, Callable, Iterator, List, Tuple

import tensorflow as tf

from slurm_resolver.coordination.progress import COMPILING
from slurm_resolver.errors import FitError
from slurm_resolver.log import warn_once
from slurm_resolver.tf.keras.patches import patch_metrics
from slurm_resolver.tf.keras.row_means import may_be_no_mean, why_no_mean
from slurm_resolver.tf.keras.sharing import (
    Share,
    count_rows,
    part_of_batch,
    share,
    without_optionals,
)
from slurm_resolver.tf.keras.step import (
    Step,
    all_reduce,
    first_local,
    replica_number,
    run_in,
    run_in_replicas,
)
from slurm_resolver.tf.keras.whole_batch import UnknownLossError
from slurm_resolver.tf.progress import noting, reporter, timed

Method = Callable[..., Any]
_SEEDS = 2**31 - 1


def run_step(
    model: Any, batch: Any, function: Callable[[Step, Any], Any], *, whole: bool = False
) -> Any:
    """Returns a function's result on a replica's step and part, which is the same in all replicas.

    Each replica computes its part of a `Share`, or the `whole` batch. Any other batch comes from a
    distributed dataset of TensorFlow, and is this replica's part already.
    """
    import keras

    patch_metrics(keras)
    if not tf.executing_eagerly():
        reporter.enter(COMPILING)

    def in_replica(batch: Any) -> Any:
        replica = replica_number()
        shared = isinstance(batch, Share)
        part, step = _part(model, replica, batch, whole) if shared else _own(model, replica, batch)
        graph = tf.compat.v1.get_default_graph()
        if step.draw and not tf.executing_eagerly() and graph.seed is not None:
            # Each replica has other rows, which draw other random numbers.
            graph.seed = (graph.seed + 1_000_003 * step.draw) % _SEEDS
        part = without_optionals(part)
        step.own = count_rows(part)
        return run_in(step, lambda: function(step, part))

    return run_in_replicas(model.distribute_strategy, in_replica, batch)


def _part(model: Any, replica: int, share: Share, whole: bool) -> Tuple[Any, Step]:
    """Returns a replica's part of a batch, and its step."""
    sharing = model.distribute_strategy.sharing
    rows = count_rows(share.batch)
    start, stop = (0, rows) if whole else sharing.bounds(replica, rows)
    with tf.device("/cpu:0"):  # other rows need not be copied to a GPU
        part = share.batch if whole else part_of_batch(share.batch, start, stop)
    repeated = tf.logical_or(whole, rows < sharing.replicas)
    weight = tf.cast(stop - start, tf.float32) / tf.cast(rows, tf.float32)
    return part, Step(
        model,
        replica,
        tf.cast(rows, tf.int32),
        tf.cast(start, tf.int32),
        count=tf.where(repeated, rows if replica == 0 else 0, stop - start),
        weight=tf.where(repeated, 1.0 / sharing.replicas, weight),
        digest=share.digest,
        draw=0 if whole else replica,
    )


def _own(model: Any, replica: int, part: Any) -> Tuple[Any, Step]:
    """Returns the data that this worker has read for itself, and its step."""
    replicas = model.distribute_strategy.sharing.replicas
    own = tf.cast(count_rows(part), tf.int32)
    counts = all_reduce(tf.one_hot(replica, replicas, on_value=own, off_value=0, dtype=tf.int32))
    rows, first = tf.reduce_sum(counts), tf.reduce_sum(counts[:replica])
    weight = tf.cast(own, tf.float32) / tf.cast(rows, tf.float32)
    return part, Step(model, replica, rows, first, own, weight, draw=replica)


def compiled(model: Any, function: Method) -> Any:
    """Compiles a function into a graph, unless the model runs eagerly."""
    if model.run_eagerly:
        return function
    function = tf.autograph.experimental.do_not_convert(function)
    return tf.function(function, reduce_retracing=True)


@contextlib.contextmanager
def _steps(model: Any, count: int) -> Iterator[None]:
    reporter.begin_step(count)
    try:
        with model.distribute_strategy.workers.step():
            yield
    finally:
        reporter.end_step()


class StepFunction:
    """A model's `train_function` or `test_function`."""

    def __init__(self, model: Any, kind: str) -> None:
        self._model = model
        self._kind = kind
        self._step = getattr(model, f"{kind}_step")
        self._examined = model.distribute_strategy.sharing.replicas == 1
        self._doubted = may_be_no_mean(model, kind)  # whether a loss may not be a mean over rows
        self._own = not self._step.__module__.startswith("keras.")
        self._make_functions(whole=False)

    def _make_functions(self, whole: bool) -> None:
        self._whole = whole  # whether every replica computes all rows
        self._on_batch = compiled(self._model, self._run)
        self._on_iterator = compiled(self._model, self._run_several)

    def __call__(self, iterator: Any) -> Any:
        """Returns the logs of the next step, or of the last of `steps_per_execution`."""
        of_data = isinstance(iterator, (tf.data.Iterator, tf.distribute.DistributedIterator))
        count, logs = self._model.steps_per_execution, None
        with _steps(self._model, count):
            if of_data and not self._must_examine() and not self._model.run_eagerly:
                try:
                    return self._on_iterator(iterator)
                except UnknownLossError:  # before it has taken a batch
                    self._doubt()
            for _, batch in zip(range(count), noting(iterator)):
                logs = self._take(_shared(batch))
            if logs is None:
                raise StopIteration
            return logs

    def _take(self, batch: Any) -> Any:
        if not self._must_examine():
            try:
                return self._on_batch(batch)
            except UnknownLossError:
                self._doubt()
        self._examine(batch)
        return self._on_batch(batch)

    def _doubt(self) -> None:
        self._doubted = True
        self._make_functions(whole=False)

    def _must_examine(self) -> bool:
        return self._doubted and not self._examined

    def _examine(self, batch: Any) -> None:
        """Lets every worker compute whole batches if a loss of the step is not a mean over rows."""
        self._examined = True
        strategy = self._model.distribute_strategy
        part = batch.batch if isinstance(batch, Share) else first_local(strategy, batch)
        found = why_no_mean(self._model, self._kind, without_optionals(part))
        found = next(filter(None, strategy.workers.exchange("examines its losses", found)), None)
        if found is None:
            return
        if not isinstance(batch, Share):
            raise FitError(f"{found} With AutoShardPolicy.AUTO, workers can compute whole batches.")
        warn_once(f"{found} Until then every worker computes whole batches, as one process does.")
        self._make_functions(whole=True)

    def _run_several(self, iterator: Any) -> Any:
        results = self._run(timed(iterator.get_next))
        count = self._model.steps_per_execution
        if count == 1:
            return results

        def again(done: Any, results: Any) -> Any:
            batch = timed(iterator.get_next_as_optional)
            there = batch.has_value()
            results = tf.cond(there, lambda: self._run(batch.get_value()), lambda: results)
            return tf.where(there, done + 1, count), results

        return tf.while_loop(lambda done, _: done < count, again, (1, results))[1]

    def _run(self, batch: Any) -> Any:
        # If the data has ended, no step may be counted.
        with tf.control_dependencies([batch.digest] if isinstance(batch, Share) else []):
            return run_step(self._model, batch, self._in_replica, whole=self._whole)

    def _in_replica(self, step: Step, part: Any) -> Any:
        statistics = _statistics(self._model) if self._kind == "train" else []
        step.statistics, step.trusted = statistics, self._examined
        logs = tf.nest.map_structure(as_tensor, self._step(part))
        if self._own:
            step.statistics = statistics  # the step may have called layers before
        step.add_changes()
        return _average(step, logs)


def _statistics(model: Any) -> List[Any]:
    """Returns the variables that each worker updates from its own part of the batch.

    These are floating-point variables that are never trained, such as the moving averages of
    BatchNormalization. Frozen weights do not belong to them.
    """
    return [
        variable
        for variable in model.non_trainable_variables
        if tf.as_dtype(variable.dtype).is_floating
        and not variable.value.trainable
        and variable.value.synchronization != tf.VariableSynchronization.ON_READ
    ]


def as_tensor(value: Any) -> Any:
    """Converts a number, array or variable."""
    kept = (tf.Tensor, tf.RaggedTensor, tf.SparseTensor)
    return value if value is None or isinstance(value, kept) else tf.convert_to_tensor(value)


def _average(step: Step, logs: Any) -> Any:
    """Returns a step's logs as in one process: means of scalars, and vectors with all rows."""

    def average(value: Any) -> Any:
        if value is None or id(value) in step.alike or _is_alike(value):
            return value
        if step.is_by_row(value):
            return step.gather(value)
        if value.dtype.is_floating:
            return step.mean(value)
        raise FitError(
            f"the step of {step.model.name!r} returns {value.dtype.name} numbers that each "
            "worker computes from its own rows; expected floats, of which the mean over all "
            "rows is taken: cast them, or return the result of a metric."
        )

    return tf.nest.map_structure(average, logs)


def _is_alike(value: Any) -> bool:
    """Returns whether a graph's tensor is a constant, or an integer read from a variable."""
    if tf.executing_eagerly():
        return not value.dtype.is_floating
    is_read = not value.dtype.is_floating and value.op.type == "ReadVariableOp"
    return is_read or tf.get_static_value(value) is not None


class PredictFunction:
    """A model's `predict_function`: takes a list of batches, and returns all workers' outputs."""

    def __init__(self, model: Any) -> None:
        self._model = model
        self._on_batch = compiled(model, self._run)

    def __call__(self, batches: List[Any]) -> Any:
        """Returns the outputs for all rows of some batches, in their order."""
        with _steps(self._model, len(batches)):
            outputs = [self._on_batch(_shared(batch)) for batch in batches]
        if len(outputs) == 1:
            return outputs[0]
        return tf.nest.map_structure(lambda *parts: tf.concat(parts, axis=0), *outputs)

    def _run(self, batch: Any) -> Any:
        predict = self._model.predict_step
        return run_step(self._model, batch, lambda step, part: step.gather_structure(predict(part)))


def _shared(batch: Any) -> Any:
    """Returns a batch of `train_on_batch`, which is the same in all workers, as a dataset does."""
    values = (Share, tf.distribute.DistributedValues)
    if any(isinstance(value, values) for value in (batch, *tf.nest.flatten(batch))):
        return batch
    return share(tf.nest.map_structure(as_tensor, batch))
