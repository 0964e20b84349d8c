"""One step of all replicas on one global batch, as one replica sees it.

A step on R replicas is one process's step on the whole batch: its gradient is the mean of the
replicas' gradients, weighted by their rows.
"""

from __future__ import annotations

import contextlib
import dataclasses
from typing import Any, Callable, Dict, Iterable, Iterator, List, Optional, Sequence, Tuple

import tensorflow as tf

from slurm_resolver.errors import FitError
from slurm_resolver.tf.keras import borrowed
from slurm_resolver.tf.keras.comparison import Comparison

# The steps that are being traced, or run eagerly, in this process, by the replica's number.
_current: Dict[int, Step] = {}


@dataclasses.dataclass(eq=False)
class Step:
    """A step as one replica sees it."""

    model: Any
    replica: int  # this replica's number among all
    rows: Any  # of the global batch, int32
    first: Any  # row of this replica's part
    count: Any  # of rows that it adds to the global batch; 0 where another replica has the same
    weight: Any  # its share in every mean, float32; the shares of all replicas add up to 1
    comparison: Optional[Comparison] = None  # of the workers' steps
    digest: Any = None  # of the global batch; None if each worker reads its own data
    names: Sequence[str] = ()  # of the tensors in the digest
    own: Any = None  # the number of rows of this replica's tensors: an int, or an int32 tensor
    # Variables that become the mean of all replicas.
    statistics: List[Any] = dataclasses.field(default_factory=list)
    whole: bool = False  # whether each replica computes all rows of the global batch
    means_only: bool = False  # whether a number that custom code gives to add_loss ends the step
    compiled_loss: bool = False  # whether the loss given to `compile` is being computed
    compiled_by_xla: bool = False  # whether a tf.function with jit_compile=True is being called
    nested: bool = False  # whether a metric or loss is already seeing the whole batch
    alike: Dict[int, Any] = dataclasses.field(default_factory=dict)  # in all replicas, by id

    def __post_init__(self) -> None:
        self.draw = 0 if self.whole else self.replica  # which random numbers it draws
        self._shared = self.digest is not None  # whether all workers have read the same batch
        # By the id of a tensor or variable, which must live as long as the step.
        self._gathered: Dict[int, Tuple[Any, Any]] = {}
        self._before: Dict[int, Any] = {}  # values of metrics' variables, the same in all replicas
        self._changed: Dict[int, Any] = {}  # variables to which this replica's rows have been added
        self.keep(self.model.metrics_variables)

    @contextlib.contextmanager
    def setting(self, name: str) -> Iterator[None]:
        """Sets an attribute in the block: "nested", "compiled_loss" or "compiled_by_xla"."""
        setattr(self, name, True)
        try:
            yield
        finally:
            setattr(self, name, False)

    def is_by_row(self, value: Any) -> bool:
        """Whether a tensor has a value for each of this replica's rows."""
        own = self.own if isinstance(self.own, int) else None
        return bool(value.shape.rank != 0 and value.shape[0] == own)

    def is_of_own_rows(self, value: Any) -> Any:
        """Whether a tensor has a value for each of this replica's rows, and not for all rows."""
        if value.shape.rank == 0:
            return False
        return tf.logical_and(tf.shape(value)[0] == self.own, self.own != self.rows)

    def add(self, values: Sequence[Any]) -> List[Any]:
        """Returns the sums over all replicas; one collective for each type takes them all."""
        self._check_compiler()
        sums = list(values)
        for dtype in dict.fromkeys(value.dtype for value in values):
            places = [place for place, value in enumerate(values) if value.dtype == dtype]
            # TensorFlow needs tensors that are made on this replica's device.
            parts = [tf.identity(values[place]) for place in places]
            for place, total in zip(places, all_reduce(parts)):
                sums[place] = total
        return sums

    def mean(self, value: Any) -> Any:
        """Returns the mean of a floating-point tensor over all replicas, weighted by their rows."""
        return self.add([self._weighted(value)])[0]

    def gather(self, value: Any) -> Any:
        """Returns a tensor with all replicas' rows along axis 0, in their order.

        Gradients flow into this replica's own rows.
        """
        if not isinstance(value, tf.Tensor) or value.dtype == tf.string:
            kind = "string" if isinstance(value, tf.Tensor) else type(value).__name__
            raise FitError(
                f"a {kind} cannot be gathered from all workers; expected "
                "dense numbers: convert it, such as with to_tensor() or tf.sparse.to_dense()."
            )
        if id(value) in self._gathered:
            return self._gathered[id(value)][1]
        self._check_compiler()
        sent = value
        if value.dtype == tf.bool or (value.dtype.is_integer and value.dtype.size < 4):
            sent = tf.cast(value, tf.int32)
        own = sent[: self.count]
        end = self.first + self.count
        padding = tf.zeros([tf.rank(sent) - 1, 2], tf.int32)
        padding = tf.concat([[[self.first, self.rows - end]], padding], axis=0)
        others = all_reduce(tf.pad(tf.stop_gradient(own), padding))
        whole = tf.concat([others[: self.first], own, others[end:]], axis=0)
        whole.set_shape([tf.get_static_value(self.rows), *sent.shape[1:]])
        whole = whole if sent is value else tf.cast(whole, value.dtype)
        mask = borrowed.GET_MASK.get()(value)
        if mask is not None:
            borrowed.SET_MASK.get()(whole, self.gather(mask))
        self._gathered[id(value)] = value, whole
        return whole

    def gather_structure(self, values: Any) -> Any:
        """Gathers tensors with rows; of scalars, it takes the mean."""

        def gather(value: Any) -> Any:
            if not isinstance(value, (tf.Tensor, tf.RaggedTensor, tf.SparseTensor)):
                return value
            if value.shape.rank != 0:
                return self.gather(value)
            return self.mean(value) if value.dtype.is_floating else value

        return tf.nest.map_structure(gather, values)

    def loss_of_all_rows(self, compute: Callable[..., Any], *parts: Any) -> Any:
        """Returns a loss of the whole batch, of which this replica has parts.

        Its gradient is that of this replica's rows, and is weighted as all gradients are.
        """
        with self.setting("nested"):
            loss = compute(*self.gather_structure(parts))
        factor = tf.math.divide_no_nan(1.0, self.weight)
        return loss + tf.cast(factor - 1, loss.dtype) * (loss - tf.stop_gradient(loss))

    def change(self, variables: Iterable[Any], *, made: bool = False) -> None:
        """Notes that metrics' variables get this replica's rows; `made` ones began as zeros."""
        self._check_compiler()
        for variable in variables:
            if id(variable) not in self._before:
                zeros = tf.zeros(variable.shape, variable.dtype)
                self._before[id(variable)] = zeros if made else tf.convert_to_tensor(variable.value)
            self._changed[id(variable)] = variable

    def keep(self, variables: Iterable[Any]) -> None:
        """Notes that metrics' variables are already the same in all replicas."""
        for variable in variables:
            self._before[id(variable)] = tf.convert_to_tensor(variable.value)
            self._changed.pop(id(variable), None)

    def add_changes(self) -> None:
        """Adds what all replicas have added to metrics' variables.

        The first call in a step also averages the statistics of BatchNormalization, and compares
        the workers' batches and learning rates.
        """
        changed = list(self._changed.values())
        statistics = self.statistics
        comparison = self.comparison
        self._changed = {}
        self.statistics = []
        self.comparison = None
        own = [variable.value - self._before[id(variable)] for variable in changed]
        own = [tf.where(self.count > 0, value, tf.zeros_like(value)) for value in own]
        own += [self._weighted(tf.convert_to_tensor(one.value)) for one in statistics]
        if comparison is not None:
            own.append(comparison.row(self.replica, self.digest, self.names))
        sums = self.add(own)
        if comparison is not None:
            comparison.check(sums.pop())
        for variable, mean in zip(statistics, sums[len(changed) :]):
            variable.assign(mean)
        for variable, total in zip(changed, sums):
            variable.value.assign(self._before[id(variable)] + total)
        self.keep(changed)

    def _check_compiler(self) -> None:
        if self.compiled_by_xla:
            raise FitError(
                f"a tf.function(jit_compile=True) in a step of {self.model.name!r} computes a "
                "gradient, a loss or a metric, to which all workers contribute. XLA cannot compile "
                "that: leave jit_compile=True out, or compile only a part of the layers' code."
            )

    def _weighted(self, value: Any) -> Any:
        return self.unless_empty(value) * tf.cast(self.weight, value.dtype)

    def unless_empty(self, value: Any) -> Any:
        """Returns zeros if this replica has no rows, for which many layers and losses return NaN.

        That happens only if workers read their own data, and the data of one has ended.
        """
        if self._shared:
            return value
        if isinstance(value, tf.IndexedSlices):
            return tf.IndexedSlices(
                self.unless_empty(value.values), value.indices, value.dense_shape
            )
        return tf.where(self.count > 0, value, tf.zeros_like(value))


def all_reduce(value: Any) -> Any:
    """Returns the sums over all replicas of a tensor, or of each of a list."""
    return tf.distribute.get_replica_context().all_reduce(tf.distribute.ReduceOp.SUM, value)


def current_step() -> Optional[Step]:
    """Returns the caller's step; None outside of Keras' steps on several workers."""
    return _current.get(replica_number()) if _current and is_in_replica() else None


def is_in_replica() -> bool:
    """Whether the caller is one of a strategy's replicas."""
    return tf.distribute.has_strategy() and not tf.distribute.in_cross_replica_context()


def replica_number() -> int:
    """Returns the number of the caller's replica among the replicas of all workers."""
    return int(tf.get_static_value(tf.distribute.get_replica_context().replica_id_in_sync_group))


def run_in_replicas(strategy: Any, function: Callable[..., Any], *args: Any) -> Any:
    """Calls a function in each replica of this worker, and returns the first one's result.

    A single replica runs without a thread, because conditions in TensorFlow's threads cannot update
    variables.
    """

    def first(value: Any) -> Any:
        return strategy.experimental_local_results(value)[0]

    if strategy.sharing.local > 1:
        return tf.nest.map_structure(first, strategy.run(function, args=args))
    replica = tf.distribute.ReplicaContext(strategy, strategy.sharing.first)
    with strategy.scope(), replica, tf.device(strategy.extended.worker_devices[0]):
        return function(*tf.nest.map_structure(first, args))


def run_in(step: Step, function: Callable[[], Any]) -> Any:
    """Returns the result of a function in a step."""
    _current[step.replica] = step
    try:
        return function()
    finally:
        del _current[step.replica]
