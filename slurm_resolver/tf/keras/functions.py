"""Keras 3's train, test and predict functions on several workers."""

from __future__ import annotations

from typing import Any, Callable, List

import tensorflow as tf

from slurm_resolver.coordination.progress import COMPILING
from slurm_resolver.errors import FitError
from slurm_resolver.tf.keras.calls import without_optionals
from slurm_resolver.tf.keras.metrics import keep_sum
from slurm_resolver.tf.keras.patches import patch_metrics
from slurm_resolver.tf.keras.seeds import draw_by_replica
from slurm_resolver.tf.keras.sharing import Share
from slurm_resolver.tf.keras.step import Step, all_reduce, replica_number, run_in, run_in_replicas
from slurm_resolver.tf.progress import timed
from slurm_resolver.tf.reporter import reporter

Method = Callable[..., Any]


def run_step(model: Any, batch: Any, function: Callable[[Step, Any], Any]) -> Any:
    """Returns what a function of each replica's step and part gives, of this worker's first one.

    Args:
        model: whose step it is.
        batch: a `Share`, or what TensorFlow's distributed datasets give.
        function: must give the same in all replicas.
    """
    import keras

    patch_metrics(keras)
    strategy = model.distribute_strategy
    sharing = strategy.sharing

    def in_replica(part: Any) -> Any:
        replica = replica_number()
        step = _make_step(model, replica, batch, part)
        draw_by_replica(replica)
        part = without_optionals(part)
        step.own_rows = _first_with_rows(part).shape[0]
        return run_in(step, lambda: function(step, part))

    if not isinstance(batch, Share):
        parts = batch
    elif sharing.local == 1:
        (parts,) = batch.parts
    else:
        shares = batch.parts
        parts = strategy.experimental_distribute_values_from_function(
            lambda context: shares[context.replica_id_in_sync_group - sharing.first]
        )
    return run_in_replicas(strategy, in_replica, parts)


def _is_distributed(batch: Any) -> bool:
    values = tf.nest.flatten(batch)
    return any(isinstance(value, tf.distribute.DistributedValues) for value in values)


def _as_tensors(batch: Any) -> Any:
    """Converts a batch as `train_on_batch` takes it."""
    return tf.nest.map_structure(_as_tensor, batch)


def _make_step(model: Any, replica: int, batch: Any, part: Any) -> Step:
    sharing = model.distribute_strategy.sharing
    if isinstance(batch, Share):
        start, stop = sharing.bounds(replica, batch.rows)
        whole = batch.rows < sharing.replicas
        weight = tf.cast(stop - start, tf.float32) / tf.cast(batch.rows, tf.float32)
        weight = tf.where(whole, 1.0 / sharing.replicas, weight)
        count = tf.where(whole, batch.rows if replica == 0 else 0, stop - start)
        repeats = tf.where(whole, float(sharing.replicas), 1.0)
        return Step(model, replica, batch.rows, start, count, weight, repeats, batch.digest)
    # Data that each worker has of its own: only together do they know how many rows there are.
    first = _first_with_rows(part)
    own = tf.cast(
        first.nrows() if isinstance(first, tf.RaggedTensor) else tf.shape(first)[0], tf.int32
    )
    counts = all_reduce(
        tf.one_hot(replica, sharing.replicas, on_value=own, off_value=0, dtype=tf.int32)
    )
    rows = tf.reduce_sum(counts)
    weight = tf.cast(own, tf.float32) / tf.cast(rows, tf.float32)
    return Step(model, replica, rows, tf.reduce_sum(counts[:replica]), own, weight)


def _first_with_rows(part: Any) -> Any:
    return next(value for value in tf.nest.flatten(part) if hasattr(value, "shape"))


class StepFunction:
    """A model's `train_function` or `test_function`."""

    def __init__(self, model: Any, kind: str) -> None:
        self._model = model
        self._kind = kind
        self._step = getattr(model, f"{kind}_step")
        self._summed: List[Any] = []  # the variables of metrics whose sums a step returns
        self._on_batch = self._compile(self._run)
        self._on_iterator = self._compile(self._run_several)

    def _compile(self, function: Method) -> Any:
        if self._model.run_eagerly:
            return function
        function = tf.autograph.experimental.do_not_convert(function)
        return tf.function(function, reduce_retracing=True)

    def __call__(self, iterator: Any) -> Any:
        """Returns the logs of the next step, or of the last of `steps_per_execution`.

        Raises:
            StopIteration, tensorflow.errors.OutOfRangeError: where there are no more data.
        """
        reporter.begin_step(self._model.steps_per_execution)
        try:
            logs, sums = self._execute(iterator)
            for variable, total in zip(self._summed, sums):
                keep_sum(variable, total)
        finally:
            reporter.end_step()
        return logs

    def _execute(self, iterator: Any) -> Any:
        if isinstance(iterator, (tf.data.Iterator, tf.distribute.DistributedIterator)):
            return self._on_iterator(iterator)
        # Keras makes a generator of `train_on_batch`'s one batch, which all workers are given.
        sharing = self._model.distribute_strategy.sharing
        for _, batch in zip(range(self._model.steps_per_execution), iterator):
            results = self._on_batch(sharing.share(_as_tensors(batch)))
        return results

    def _run_several(self, iterator: Any) -> Any:
        results = self._run(timed(iterator.get_next))
        count = self._model.steps_per_execution
        if count == 1:
            return results
        if self._model.run_eagerly:
            for _ in range(count - 1):
                batch = iterator.get_next_as_optional()
                if not batch.has_value():
                    break
                results = self._run(batch.get_value())
            return results

        def again(done: Any, results: Any) -> Any:
            batch = timed(iterator.get_next_as_optional)
            there = batch.has_value()
            results = tf.cond(there, lambda: self._run(batch.get_value()), lambda: results)
            return tf.where(there, done + 1, count), results

        return tf.while_loop(lambda done, _: done < count, again, (1, results))[1]

    def _run(self, batch: Any) -> Any:
        if not tf.executing_eagerly():
            reporter.enter(COMPILING)
        # Nothing may be counted where the data has ended.
        with tf.control_dependencies([batch.rows] if isinstance(batch, Share) else []):
            return run_step(self._model, batch, self._in_replica)

    def _in_replica(self, step: Step, part: Any) -> Any:
        if self._kind == "train":
            step.statistics = _statistics(self._model)
        statistics = step.statistics
        logs = tf.nest.map_structure(_as_tensor, self._step(part))
        own = type(self._model).train_step if self._kind == "train" else None
        if own is not None and not own.__module__.startswith("keras."):
            step.statistics = statistics  # a step of one's own may have called layers since
        step.sum_variables([])
        logs = _average(step, logs)
        self._summed, sums = step.sums()
        return logs, sums


def _statistics(model: Any) -> List[Any]:
    """Returns the variables that each worker updates from its own part of the batch.

    These are the floating-point variables that are made for no optimizer to train, such as the
    moving averages of BatchNormalization. Weights that are frozen have been made to be trained.
    """
    return [
        variable
        for variable in model.non_trainable_variables
        if tf.as_dtype(variable.dtype).is_floating
        and not variable.value.trainable
        and variable.value.synchronization != tf.VariableSynchronization.ON_READ
    ]


def _as_tensor(value: Any) -> Any:
    """Converts a number, array or variable."""
    kept = (tf.Tensor, tf.RaggedTensor, tf.SparseTensor)
    return value if value is None or isinstance(value, kept) else tf.convert_to_tensor(value)


def _average(step: Step, logs: Any) -> Any:
    """Returns a step's logs as one process's: means of scalars, all rows of vectors."""
    leaves = tf.nest.flatten(logs)
    places = []
    for place, value in enumerate(leaves):
        if value is None or id(value) in step.alike or _is_alike(value):
            continue
        if step.is_by_row(value):
            leaves[place] = step.gather(value)
        elif value.dtype.is_floating:
            places.append(place)
        else:
            raise FitError(
                f"the step of {step.model.name!r} returns {value.dtype.name} numbers that each "
                "worker computes from its own rows; expected floats, of which the mean over all "
                "rows is taken: cast them, or return the result of a metric."
            )
    for place, mean in zip(places, step.means([leaves[place] for place in places])):
        leaves[place] = mean
    return tf.nest.pack_sequence_as(logs, leaves)


def _is_alike(value: Any) -> bool:
    """Whether a graph's tensor is a constant, or an integer that is read from a variable."""
    if tf.executing_eagerly():
        return not value.dtype.is_floating
    if not value.dtype.is_floating and value.op.type == "ReadVariableOp":
        return True
    return tf.get_static_value(value) is not None


class PredictFunction:
    """A model's `predict_function`: takes a list of batches, and returns all workers' outputs."""

    def __init__(self, model: Any) -> None:
        self._model = model
        self._on_batch = self._run
        if not model.run_eagerly:
            function = tf.autograph.experimental.do_not_convert(self._run)
            self._on_batch = tf.function(function, reduce_retracing=True)

    def __call__(self, batches: List[Any]) -> Any:
        """Returns the outputs for all rows of some batches, in their order."""
        reporter.begin_step(len(batches))
        try:
            return self._execute(batches)
        finally:
            reporter.end_step()

    def _execute(self, batches: List[Any]) -> Any:
        sharing = self._model.distribute_strategy.sharing
        outputs = []
        for batch in batches:
            if not isinstance(batch, Share) and not _is_distributed(batch):
                batch = sharing.share(_as_tensors(batch))
            outputs.append(self._on_batch(batch))
        if len(outputs) == 1:
            return outputs[0]
        return tf.nest.map_structure(lambda *parts: tf.concat(parts, axis=0), *outputs)

    def _run(self, batch: Any) -> Any:
        if not tf.executing_eagerly():
            reporter.enter(COMPILING)
        return run_step(
            self._model,
            batch,
            lambda step, part: step.gather_structure(self._model.predict_step(part)),
        )


def make_function(model: Any, kind: str) -> Any:
    """Returns what takes the place of a model's `train_function`, and of the others."""
    return PredictFunction(model) if kind == "predict" else StepFunction(model, kind)
