"""A model's `train_step`, `test_step` or `predict_step`, traced as in one process, and its plan."""

from __future__ import annotations

import contextlib
import functools
from typing import Any, Callable, NamedTuple

import tensorflow as tf
from tensorflow.types.experimental import ConcreteFunction

from slurm_resolver.coordination.progress import COMPILING
from slurm_resolver.errors import FitError
from slurm_resolver.log import debug
from slurm_resolver.tf.causes import OF_PEERS, cause_of
from slurm_resolver.tf.keras.called_functions import with_called
from slurm_resolver.tf.keras.differences import Entry, compare
from slurm_resolver.tf.keras.one_process import as_one_process
from slurm_resolver.tf.keras.outside_variables import Copies, copies_of
from slurm_resolver.tf.keras.protocols import Model, Strategy
from slurm_resolver.tf.keras.sharing import TENSORS, Structure, type_of
from slurm_resolver.tf.partition.effects import RANDOM, is_drawn
from slurm_resolver.tf.partition.emission import Plan
from slurm_resolver.tf.partition.inlining import CALLS
from slurm_resolver.tf.partition.outside_graph import call_outside
from slurm_resolver.tf.partition.step import plan_step, plan_whole
from slurm_resolver.tf.partition.values import PlanError, names
from slurm_resolver.tf.private_names import Method
from slurm_resolver.tf.reporter import reporter

_UNEQUAL = (
    "the tensors of a batch have different numbers of rows; it can be split only if these are the "
    "same multiples of one number in each batch, such as 8 and 24, and this number is no less than "
    "that of the replicas"
)
_SAME_SEEDS = (
    "Set the same seeds in all workers, such as tf.random.set_seed(1): each replica draws the "
    "numbers of all rows, and takes those of its own."
)
# For these, XLA may choose another algorithm than TensorFlow.
_XLA_DRAWS = RANDOM | names(
    "StatelessRandomGetAlg StatelessRandomGetKeyCounter StatelessRandomGetKeyCounterAlg"
)
_TYPES = (tf.TensorSpec, tf.RaggedTensorSpec, tf.SparseTensorSpec)
Multiples = tuple[int, ...]
_OF_ALL = (FitError, *OF_PEERS)  # errors that end the step in all workers


class PlannedStep(NamedTuple):
    """A step of one process, and how a replica computes it.

    Attributes:
        function: the traced step; its argument is a batch.
        plan: of its graph; None if each worker calls the step itself.
        reason: why each replica computes all rows; None if each computes its own.
        copies: the variables of the replicas.
        multiples: see `StepFunction`.
        takes_any_rows: whether it is traced for any number of rows.
    """

    function: ConcreteFunction
    plan: Plan | None
    reason: str | None
    copies: Copies
    multiples: Multiples | None
    takes_any_rows: bool

    @property
    def is_whole(self) -> bool:
        """Whether each replica computes all rows of a batch."""
        return self.plan is None or self.reason is not None


class NotWrittenError(Exception):
    """Raised if a plan could not be written; says why the step has to be computed whole."""


class TracedStep:
    """A model's step, which is traced and planned once for each kind of batch.

    Layers, optimizers and metrics that are not yet built are built while the step is traced, as in
    one process. Their variables are made outside the graph, and the step is traced once more, so
    that nothing of `build` runs in a step.

    Attributes:
        fault: why each replica computes all rows from now on; None if nothing has shown that.
    """

    fault: str | None = None

    def __init__(self, model: Model, kind: str) -> None:
        self._step = getattr(model, f"{kind}_step")
        self._strategy: Strategy = model.distribute_strategy
        self._made = 0  # variables, while steps were traced
        self._planned: dict[str, PlannedStep] = {}  # by the kind of batch

    def planned(self, spec: Structure, multiples: Multiples | None) -> PlannedStep:
        """Returns the step for a kind of batch.

        Args:
            spec: the types of the whole batch's tensors, in the batch's structure.
            multiples: see `StepFunction`; None if each replica computes all rows.
        """
        any_rows = tf.nest.map_structure(type_of_rows, spec)
        kinds = {repr((kind, multiples, self.fault)): kind for kind in (any_rows, spec)}
        for key in kinds:
            if key in self._planned:
                return self._planned[key]
        constant = None
        errors = []
        for key, kind in kinds.items():
            plan = functools.partial(self._plan, kind, multiples, constant)
            try:
                self._planned[key] = call_outside(plan)
                return self._planned[key]
            except _OF_ALL:
                raise
            except Exception as error:
                constant = f"it fails if the number of rows is not a constant: {cause_of(error)}"
                errors.append(error)
        # The first attempt may have left a model half built, which hides its error.
        raise errors[0]

    def run_eagerly(self, data: Structure) -> Structure:
        """Returns the result of a step that runs eagerly, as in one process."""
        return call_outside(lambda: self._take(data))

    def _take(self, data: Structure) -> Structure:
        """Returns the result of a step on tensors, or on symbols of them."""
        with tf.variable_creator_scope(self._make_variable), as_one_process():
            return tf.nest.map_structure(as_tensor, self._step(data))

    def _plan(
        self, spec: Structure, multiples: Multiples | None, constant: str | None
    ) -> PlannedStep:
        """Traces the step, and plans it.

        Args:
            constant: why the number of rows has to be a constant; None if it has not.
        """
        reporter.enter(COMPILING)
        sharing = self._strategy.sharing
        reason = constant or self.fault or _reason_of_batch(spec, multiples)
        traced = self._trace(spec)
        self._check(traced.graph)
        if has(traced.graph, _draws_by_xla):
            reason = reason or "XLA draws other random numbers (jit_compile=True)"
        plan = None
        if sharing.replicas > 1 and reason is None:
            try:
                plan = plan_step(
                    traced,
                    multiples=multiples or (),
                    sends_inside=sharing.local_replicas == 1,
                )
            except Exception as error:
                reason = reason_of(error)
        # What only one replica may compute is sent to the others by a plan.
        if sharing.replicas > 1 and plan is None:
            with contextlib.suppress(Exception):
                if sharing.local_replicas > 1 or has(traced.graph, draws):
                    plan = plan_whole(traced)
        if sharing.local_replicas > 1 and (
            plan is None or has(traced.graph, lambda one: one.type == "LookupTableInsertV2")
        ):
            raise FitError(
                f"several GPUs in a task cannot compute a step: {reason or 'it fills a table'}. "
                "Start a task for each GPU."
            )
        return PlannedStep(
            function=traced,
            plan=plan,
            reason=reason,
            copies=copies_of(self._strategy, traced),
            multiples=multiples,
            takes_any_rows=constant is None,
        )

    def _check(self, graph: tf.Graph) -> None:
        """Raises FitError for what no step of one process has, and if workers draw differently."""
        try:
            operations = list(with_called(graph.get_operations()))
        except PlanError:  # a function is not known
            return
        for operation in operations:
            if operation.type.startswith("Collective"):
                raise FitError(
                    f"{self._step.__name__} puts values of all replicas together by itself "
                    f"({operation.name}): leave out the synchronization of tf.Variable"
                )
        seeds = [
            (operation.get_attr("seed"), operation.get_attr("seed2"))
            for operation in operations
            if operation.type in RANDOM
        ]
        if seeds and self._strategy.of_several:
            compare(
                self._strategy.workers,
                "in a step that draws numbers",
                [Entry("the seeds of tf.random", str(seeds))],
                _SAME_SEEDS,
            )

    def _trace(self, spec: Structure) -> ConcreteFunction:
        """Traces the step until it makes no variable."""
        while True:
            made = self._made
            traced = tf.function(self._take, autograph=False).get_concrete_function(spec)
            if self._made == made:
                return traced

    def _make_variable(self, make: Method, **how: Any) -> tf.Variable:
        """Makes a variable outside the graph of a step, where its initial value can be computed."""
        self._made += 1
        if tf.distribute.has_strategy():  # Keras makes it in the scope, outside of the graph
            return make(**how)
        value = how.pop("initial_value")
        if tf.is_symbolic_tensor(value):
            constant = tf.get_static_value(value)
            if constant is None:
                return make(initial_value=value, **how)
            value = constant

        def make_in_scope() -> tf.Variable:
            with self._strategy.scope():
                return tf.Variable(value, **how)

        return call_outside(make_in_scope)


def as_tensor(value: Any) -> tf.Tensor | None:
    """Converts a number, array or variable."""
    return value if value is None or isinstance(value, TENSORS) else tf.convert_to_tensor(value)


def type_of_rows(value: Any, count: int | None = None) -> tf.TypeSpec | None:
    """Returns the type of a tensor for another number of rows, by default an unknown one."""
    spec = type_of(value)
    if not isinstance(spec, _TYPES) or not spec.shape.rank:
        return spec
    shape = [count, *spec.shape[1:]]
    if isinstance(spec, tf.RaggedTensorSpec):
        return tf.RaggedTensorSpec(shape, spec.dtype, spec.ragged_rank, spec.row_splits_dtype)
    return type(spec)(shape, spec.dtype)


def _reason_of_batch(spec: Structure, multiples: Multiples | None) -> str | None:
    """Returns why batches of these types are computed whole: not all tensors have rows."""
    if not {tf.RaggedTensorSpec, tf.SparseTensorSpec}.isdisjoint(map(type, tf.nest.flatten(spec))):
        return "a tensor of its batches is ragged or sparse"
    return _UNEQUAL if multiples is None else None


def reason_of(error: Exception) -> str:
    """Returns why a step is computed whole that cannot be planned or written.

    The traceback of a fault of this package is logged.
    """
    if isinstance(error, PlanError):
        return str(error)
    debug("the partition of a step has failed", error)
    return (
        f"slurm_resolver has failed to split it ({type(error).__name__}: {error}); please report "
        "this, with the traceback that logging.basicConfig(level=logging.DEBUG) shows"
    )


def draws(operation: tf.Operation) -> bool:
    """Whether an operation draws by TensorFlow's seeds, or only one replica may compute it."""
    return operation.type in RANDOM or is_drawn(operation)


def _draws_by_xla(operation: tf.Operation) -> bool:
    """Whether an operation calls a function that XLA compiles and that draws."""
    is_compiled = operation.type in CALLS and operation.node_def.attr["_XlaMustCompile"].b
    return is_compiled and any(one.type in _XLA_DRAWS for one in with_called([operation]))


def draws_by_seed(operation: tf.Operation) -> bool:
    """Whether an operation draws the next number of a sequence that TensorFlow's seeds begin."""
    return operation.type in RANDOM and not is_drawn(operation)


def has(graph: tf.Graph, is_wanted: Callable[[tf.Operation], bool]) -> bool:
    """Whether a graph, or a function that it calls, has or may have such an operation."""
    try:
        return any(map(is_wanted, with_called(graph.get_operations())))
    except PlanError:  # a function is not known
        return True
