"""One step of all replicas on one global batch, as one replica sees it.

A step on R replicas is one process's step on the whole batch: its gradient is the mean of the
replicas' gradients, weighted by their rows.

A *replica* is a copy of the model on one device; a worker has one for each of its devices. A
*split* step computes some rows of the batch in each replica; in a *whole* step, each replica
computes all of them. Afterwards, the weights, metrics and results are the same in all replicas.
"""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Iterable, Iterator, Sequence
from contextvars import ContextVar
from typing import Any

import tensorflow as tf

from slurm_resolver.errors import FitError
from slurm_resolver.tf import private_names
from slurm_resolver.tf.keras.step_comparison import Comparison
from slurm_resolver.tf.private_names import Method
from slurm_resolver.tf.rows.analysis import Analysis
from slurm_resolver.tf.rows.values import MEAN, SAME, SUM, Value


class Additions:
    """What a replica adds to metrics, whose variables were the same in all replicas.

    A condition, loop or tf.function in a step has a graph of its own, in which TensorFlow cannot
    add up.
    """

    def __init__(self) -> None:
        self._graph = tf.compat.v1.get_default_graph()
        self._before: dict[int, tuple[Any, Any]] = {}  # a variable and its value, by its id

    @contextlib.contextmanager
    def running(self) -> Iterator[None]:
        """Lets the caller's metrics be updated for this in the block."""
        token = _current.set(self)
        try:
            yield
        finally:
            _current.reset(token)

    def sees_updates(self) -> bool:
        """Whether the updates of metrics that are traced now happen whenever this step does."""
        return tf.executing_eagerly() or bool(self._graph.building_function)

    def is_inside(self) -> bool:
        """Whether the caller is in a condition, loop or tf.function."""
        return self._graph is not tf.compat.v1.get_default_graph()

    @contextlib.contextmanager
    def noting(self, metric: Any, *, zeros: bool = False) -> Iterator[None]:
        """Notes what the block adds to a metric's variables; those that it makes begin as zeros.

        Args:
            zeros: whether the other ones do as well, so that their values are added up.
        """
        self.note(metric.variables, zeros)
        yield
        self.note(metric.variables, zeros=True)

    def note(self, variables: Iterable[Any], zeros: bool = False) -> None:
        """Notes the values of variables of Keras, or that they begin as zeros."""
        with self._graph.as_default() if self.is_inside() else contextlib.nullcontext():
            for one in variables:
                if id(one) not in self._before:
                    value = tf.zeros(one.shape, one.dtype) if zeros else one.value
                    self._before[id(one)] = one, tf.convert_to_tensor(value)

    def has_noted(self, metric: Any) -> bool:
        """Whether something may have been added to a metric that is not yet added up."""
        return any(id(one) in self._before for one in metric.variables)

    def reset(self, original: Method, metric: Any) -> None:
        """Resets a metric, in all replicas alike."""
        for one in metric.variables:
            if self._before.pop(id(one), None) and self.is_inside():
                raise FitError(
                    f"a condition or loop in a step resets the metric {metric.name!r}, which has "
                    "been updated before. Reset it outside of the condition or loop"
                )
        original(metric)

    def sum_up(self, values: Sequence[Any]) -> Any:
        """Returns the sums of what all replicas have added."""
        return add_up(values)

    def totals(self) -> list[tuple[Any, Any]]:
        """Returns the variables, and their values with what all replicas have added."""
        noted = list(self._before.values())
        sums = self.sum_up([one.value - before for one, before in noted])
        return [(one, before + total) for (one, before), total in zip(noted, sums)]

    def add_changes(self) -> None:
        """Adds what all replicas have added."""
        for variable, total in self.totals():
            variable.value.assign(total)
        self._before.clear()

    def result(self, original: Method, metric: Any) -> Any:
        """Returns a metric's result, with what all replicas have added so far."""
        import keras

        if self.is_inside():  # which may not be taken
            with keras.StatelessScope(state_mapping=self.totals()):
                return original(metric)
        self.add_changes()
        return original(metric)


# What is being traced, or run eagerly.
_current: ContextVar[Additions | None] = ContextVar("current", default=None)


@dataclasses.dataclass(eq=False)
class Step(Additions):
    """A step as one replica sees it."""

    model: Any
    replica: int  # this replica's number among all
    rows: Any  # the number of rows of the global batch, int32
    own_rows: Any  # the number of rows that this replica computes, int32
    places: Any  # the numbers of these rows in the global batch, int32
    # Whether all replicas have all rows, of which those of the first replica count: a bool, or a
    # tensor where the number of rows is not known.
    repeated: Any
    counts: Any  # whether no replica before this one has its rows: True, or a tensor
    comparison: Comparison  # of the workers' steps
    compared: Any  # this replica's row of its table; None once the workers have been compared
    whole: bool = False  # whether each replica computes all rows, whatever their number is
    # Variables that become the mean of all replicas.
    statistics: list[Any] = dataclasses.field(default_factory=list)
    # Variables that are summed over all replicas.
    summed: list[Any] = dataclasses.field(default_factory=list)
    # Of a split step: which rows its tensors belong to.
    analysis: Analysis = dataclasses.field(init=False)
    compiled_by_xla: bool = False  # whether a tf.function with jit_compile=True is being called
    nested: bool = False  # whether a metric or loss is already seeing the whole batch

    def __post_init__(self) -> None:
        super().__init__()
        # Whether the user says that what is not known is a mean over rows.
        self.vouched = self.model.distribute_strategy.custom_losses == "mean"
        # What is added to seeds: each replica has other rows, which draw other random numbers.
        self.seed_offset = 0 if self.whole else 1_000_003 * self.replica
        # The weight of this replica's rows in a mean over the rows of all, float32.
        self.weight = tf.cast(self.own_rows / self.rows, tf.float32)
        self.inverse_weight = tf.math.divide_no_nan(1.0, self.weight)

    @contextlib.contextmanager
    def setting(self, name: str) -> Iterator[None]:
        """Sets an attribute in the block: "nested" or "compiled_by_xla"."""
        setattr(self, name, True)
        try:
            yield
        finally:
            setattr(self, name, False)

    def add(self, values: Sequence[Any]) -> Any:
        """Returns the list of the values' sums over all replicas."""
        self.check_compiler()
        return self.declare(add_up(values), SAME)

    def declare(self, tensor: Any, value: Value) -> Any:
        """Notes what is known of a tensor, or of those in a structure; returns what is given."""
        if not self.whole:
            for part in tf.nest.flatten(tensor, expand_composites=True):
                if tf.is_symbolic_tensor(part):
                    self.analysis.declare(part, value)
        return tensor

    def gather(self, value: Any) -> Any:
        """Returns a tensor with all replicas' rows along axis 0, in their order.

        Gradients flow into this replica's own rows.
        """
        if self.repeated is True:
            return value
        self.check_compiler()
        whole = gather_rows(value, self.places, self.rows, self.repeated)
        mask = private_names.GET_MASK.get()(value)
        if mask is not None:
            private_names.SET_MASK.get()(whole, self.gather(mask))
        return self.declare(whole, SAME)

    def add_changes(self) -> None:
        """Adds what all replicas have added to metrics, and averages `statistics`.

        The first call in a step also compares the workers' batches and learning rates.
        """
        for one in self.statistics:
            one.value.assign(self.addend(one.value, MEAN))
        self.note(self.statistics, zeros=True)
        self.statistics = []
        super().add_changes()

    def result(self, original: Method, metric: Any) -> Any:
        """Returns a metric's result on the rows of all replicas."""
        result = original(metric) if self.nested else super().result(original, metric)
        return self.declare(tf.nest.map_structure(tf.convert_to_tensor, result), SAME)

    def sum_up(self, values: Sequence[Any]) -> Any:
        """Returns the sums of what all replicas have added, and compares the workers once."""
        own = [self.zero_unless_counted(value) for value in values]
        if self.compared is None or self.is_inside():
            return self.add(own)
        sums = self.add([*own, self.compared])
        self.compared = None
        self.comparison.check(sums.pop())
        return sums

    def addend(self, value: Any, kind: Value) -> Any:
        """Returns what this replica adds to a sum over all replicas.

        Args:
            value: of this replica.
            kind: a SUM over its rows, a MEAN, which is weighted by their number, or what is the
                SAME in all replicas, and counts once.
        """
        counted = self.zero_unless_counted(value)
        if kind == SUM:
            return counted
        weight = self.weight if kind == MEAN else float(self.replica == 0)
        return counted * tf.cast(weight, counted.dtype)

    def components(self, variable: Any) -> Any:
        """Returns the variables of TensorFlow, one for each local replica, of one of Keras."""
        return self.model.distribute_strategy.experimental_local_results(variable.value)

    def check_compiler(self) -> None:
        """Raises FitError in what XLA compiles."""
        if self.compiled_by_xla:
            raise FitError(
                f"a tf.function(jit_compile=True) in a step of {self.model.name!r} computes a "
                "gradient, a loss or a metric, to which all workers contribute. XLA cannot compile "
                "that: leave jit_compile=True out, or compile only a part of the layers' code."
            )

    def zero_unless_counted(self, value: Any) -> Any:
        """Returns what this replica adds to a sum: zeros, or no slices, if its rows do not count.

        For no rows, many layers and losses return NaN. A replica has none if workers read their own
        data, and the data of one has ended.
        """
        if self.counts is True:
            return value
        if isinstance(value, tf.IndexedSlices):
            kept = tf.where(self.counts, tf.size(value.indices), 0)
            return tf.IndexedSlices(value.values[:kept], value.indices[:kept], value.dense_shape)
        return tf.where(self.counts, value, tf.zeros_like(value))


def gather_rows(value: Any, places: Any, rows: Any, repeated: Any) -> Any:
    """Returns a tensor with all replicas' rows along axis 0.

    Gradients flow into this replica's own rows.

    Args:
        value: the tensor of this replica's rows.
        places: the numbers of these rows among all.
        rows: the number of all rows.
        repeated: whether the tensor has all rows: a bool or a tensor.
    """
    sent = _as_sent(value)
    indices = places[: tf.where(repeated, 0, tf.size(places)), tf.newaxis]
    own = sent[: tf.shape(indices)[0]]
    shape = tf.concat([[rows], tf.shape(sent)[1:]], axis=0)
    (others,) = add_up([tf.scatter_nd(indices, tf.stop_gradient(own), shape)])
    whole = tf.cast(tf.tensor_scatter_nd_update(others, indices, own), value.dtype)
    whole.set_shape([tf.get_static_value(rows), *value.shape[1:]])
    # The rows of a tensor that all replicas have need not be those of the batch.
    return whole if repeated is False else tf.cond(repeated, lambda: value, lambda: whole)


def add_up(values: Sequence[Any]) -> list[Any]:
    """Returns the sums over all replicas; one collective for each type takes them all."""
    sums: dict[int, Any] = {}
    # TensorFlow needs tensors that are made on this replica's device.
    sent = [tf.identity(_as_sent(value)) for value in values]
    for dtype in dict.fromkeys(value.dtype for value in sent):
        parts = {place: value for place, value in enumerate(sent) if value.dtype == dtype}
        sums |= tf.distribute.get_replica_context().all_reduce(tf.distribute.ReduceOp.SUM, parts)
    return [tf.cast(sums[place], value.dtype) for place, value in enumerate(values)]


def _as_sent(value: Any) -> Any:
    """Returns a tensor in a type that TensorFlow adds on every device.

    On GPUs it adds no bfloat16, and of integers only int64 (`CreateCollective` in
    base_collective_executor.cc).
    """
    dtype = value.dtype
    if dtype == tf.bool or dtype.is_integer:
        return tf.cast(value, tf.int64)
    return tf.cast(value, tf.float32) if dtype == tf.bfloat16 else value


def current_additions() -> Additions | None:
    """Returns what the caller adds to metrics; None outside of steps and `strategy.run`."""
    return _current.get() if is_in_replica() else None


def current_step() -> Step | None:
    """Returns the caller's step; None outside of Keras' steps on several workers."""
    current = current_additions()
    return current if isinstance(current, Step) else None


def is_in_replica() -> bool:
    """Whether the caller is one of a strategy's replicas."""
    return tf.distribute.has_strategy() and not tf.distribute.in_cross_replica_context()


def replica_number() -> int:
    """Returns the number of the caller's replica among the replicas of all workers."""
    return int(tf.get_static_value(tf.distribute.get_replica_context().replica_id_in_sync_group))


def run_in_replicas(strategy: Any, function: Method, batch: Any) -> Any:
    """Calls a function in each replica of this worker, and returns the first one's result.

    A single replica runs without a thread, because conditions in TensorFlow's threads cannot update
    variables.
    """

    def first(value: Any) -> Any:
        return strategy.experimental_local_results(value)[0]

    if strategy.sharing.local_replicas > 1:
        return tf.nest.map_structure(first, strategy.run(function, args=(batch,)))
    replica = tf.distribute.ReplicaContext(strategy, strategy.sharing.first_replica)
    with strategy.scope(), replica, tf.device(strategy.extended.worker_devices[0]):
        return function(tf.nest.map_structure(first, batch))
