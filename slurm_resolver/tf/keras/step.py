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
import enum
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import tensorflow as tf

from slurm_resolver.errors import FitError
from slurm_resolver.tf import private_names
from slurm_resolver.tf.keras.step_comparison import Comparison
from slurm_resolver.tf.private_names import Method
from slurm_resolver.tf.rows.analysis import Analysis
from slurm_resolver.tf.rows.values import SAME, Value


class Factor(enum.Enum):
    """By what a replica's addition to a variable is multiplied before the additions are summed."""

    ONE = enum.auto()  # each replica adds the part of its rows
    WEIGHT = enum.auto()  # a mean over its rows, which is weighted by their number
    FIRST = enum.auto()  # all replicas add the same, which counts once


@dataclasses.dataclass
class SummedVariable:
    """A variable of a metric, or a statistic of BatchNormalization.

    Attributes:
        variable: of Keras.
        before: its value that is the same in all replicas.
        factor: how what this replica has added is added up; None if it has added nothing.
    """

    variable: Any
    before: Any
    factor: Factor | None = None


# The steps that are being traced, or run eagerly, in this process, by the replica's number.
_current: dict[int, Step] = {}


@dataclasses.dataclass(eq=False)
class Step:
    """A step as one replica sees it."""

    model: Any
    replica: int  # this replica's number among all
    rows: Any  # the number of rows of the global batch, int32
    own_rows: Any  # the number of rows that this replica computes, int32
    places: Any  # the numbers of these rows in the global batch, int32
    # Whether all replicas have all rows, of which those of the first replica count: a bool, or a
    # tensor where the number of rows is not known.
    repeated: Any
    comparison: Comparison | None = None  # of the workers' steps
    digest: Any = None  # of the global batch; None if each worker reads its own data
    names: Sequence[str] = ()  # of the tensors in the digest
    # Variables that become the mean of all replicas.
    statistics: list[Any] = dataclasses.field(default_factory=list)
    whole: bool = False  # whether each replica computes all rows, whatever their number is
    # Of a split step: which rows its tensors belong to.
    analysis: Analysis = dataclasses.field(init=False)
    compiled_by_xla: bool = False  # whether a tf.function with jit_compile=True is being called
    nested: bool = False  # whether a metric or loss is already seeing the whole batch

    def __post_init__(self) -> None:
        strategy = self.model.distribute_strategy
        # Whether the user says that what is not known is a mean over rows.
        self.vouched = strategy.custom_losses == "mean"
        # What is added to seeds: each replica has other rows, which draw other random numbers.
        self.seed_offset = 0 if self.whole else 1_000_003 * self.replica
        self.whole |= strategy.sharing.replicas == 1  # one replica has all rows
        # Whether this replica has rows that no replica before it has.
        is_first = self.replica == 0
        self._counts = (self.own_rows > 0) & (is_first | tf.logical_not(self.repeated))
        # The weight of this replica's rows in a mean over the rows of all, float32.
        self.weight = tf.cast(self.own_rows / self.rows, tf.float32)
        self.inverse_weight = tf.math.divide_no_nan(1.0, self.weight)
        # By the id of a tensor or variable, which must live as long as the step.
        self._gathered: dict[int, tuple[Any, Any]] = {}
        self.of_metrics: dict[int, SummedVariable] = {}
        self.note_equal(self.model.metrics_variables)

    @contextlib.contextmanager
    def running(self) -> Iterator[None]:
        """Makes this the caller's step in the block."""
        _current[self.replica] = self
        try:
            yield
        finally:
            del _current[self.replica]

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
        self._check_compiler()
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
        if id(value) in self._gathered:
            return self._gathered[id(value)][1]
        self._check_compiler()
        whole = gather_rows(value, self.places, self.rows, self.repeated)
        mask = private_names.GET_MASK.get()(value)
        if mask is not None:
            private_names.SET_MASK.get()(whole, self.gather(mask))
        self._gathered[id(value)] = value, whole
        return self.declare(whole, SAME)

    def note_changes(
        self, variables: Iterable[Any], factors: Mapping[int, Factor], *, made: bool = False
    ) -> None:
        """Notes that metrics' variables get this replica's rows.

        Args:
            variables: of Keras.
            factors: by the id of a variable, how the changes are added up. Without one, each
                replica adds a part.
            made: whether those that are not known yet have been made by the update, as zeros.
        """
        self._check_compiler()
        for variable in variables:
            key = id(variable)
            if key not in self.of_metrics:
                zeros = made or self.whole  # the first replica's value counts
                before = tf.zeros(variable.shape, variable.dtype) if zeros else variable.value
                self.of_metrics[key] = SummedVariable(variable, tf.convert_to_tensor(before))
            factor = factors.get(key, Factor.ONE)
            if self.of_metrics[key].factor not in (None, factor):
                self.add_changes()
            self.of_metrics[key].factor = factor

    def note_equal(self, variables: Iterable[Any]) -> None:
        """Notes that metrics' variables are already the same in all replicas."""
        for variable in variables:
            before = tf.convert_to_tensor(variable.value)
            self.of_metrics[id(variable)] = SummedVariable(variable, before)

    def add_changes(self) -> None:
        """Adds what all replicas have added to metrics' variables.

        The first call in a step also averages the statistics of BatchNormalization, and compares
        the workers' batches and learning rates.
        """
        changed = [one for one in self.of_metrics.values() if one.factor]
        changed += [SummedVariable(one, 0.0, Factor.WEIGHT) for one in self.statistics]
        self.statistics = []
        own = [self.addend(one.variable.value - one.before, one.factor) for one in changed]
        comparison = self.comparison
        self.comparison = None
        if comparison:
            own.append(comparison.row(self.replica, self.digest, self.names))
        sums = self.add(own)
        if comparison:
            comparison.check(sums.pop())
        for one, total in zip(changed, sums):
            one.variable.value.assign(one.before + total)
        self.note_equal(one.variable for one in changed)

    def addend(self, value: Any, factor: Factor | None) -> Any:
        """Returns what this replica adds to a sum over all replicas."""
        counted = self.zero_unless_counted(value)
        if factor is Factor.ONE:
            return counted
        weight = self.weight if factor is Factor.WEIGHT else float(self.replica == 0)
        return counted * tf.cast(weight, counted.dtype)

    def components(self, variable: Any) -> Any:
        """Returns the variables of TensorFlow, one for each local replica, of one of Keras."""
        return self.model.distribute_strategy.experimental_local_results(variable.value)

    def _check_compiler(self) -> None:
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
        reads_same_batch = self.digest is not None
        if reads_same_batch and self.repeated is False:
            return value
        if isinstance(value, tf.IndexedSlices):
            kept = tf.where(self._counts, tf.size(value.indices), 0)
            return tf.IndexedSlices(value.values[:kept], value.indices[:kept], value.dense_shape)
        return tf.where(self._counts, value, tf.zeros_like(value))


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
    sums = list(values)
    # TensorFlow needs tensors that are made on this replica's device.
    sent = [tf.identity(_as_sent(value)) for value in values]
    for dtype in dict.fromkeys(value.dtype for value in sent):
        places = [place for place, value in enumerate(sent) if value.dtype == dtype]
        parts = [sent[place] for place in places]
        totals = tf.distribute.get_replica_context().all_reduce(tf.distribute.ReduceOp.SUM, parts)
        for place, total in zip(places, totals):
            sums[place] = tf.cast(total, values[place].dtype)
    return sums


def _as_sent(value: Any) -> Any:
    """Returns a tensor in a type that TensorFlow adds on every device.

    On GPUs it adds no bfloat16, and of integers only int64 (`CreateCollective` in
    base_collective_executor.cc).
    """
    dtype = value.dtype
    if dtype == tf.bool or dtype.is_integer:
        return tf.cast(value, tf.int64)
    return tf.cast(value, tf.float32) if dtype == tf.bfloat16 else value


def current_step() -> Step | None:
    """Returns the caller's step; None outside of Keras' steps on several workers."""
    return _current.get(replica_number()) if _current and is_in_replica() else None


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
