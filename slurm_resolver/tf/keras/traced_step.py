"""A model's `train_step`, `test_step` or `predict_step`, traced as in one process, and its plan."""

from __future__ import annotations

import contextlib
from typing import Any, Callable, NamedTuple

import tensorflow as tf
from tensorflow.types.experimental import ConcreteFunction

from slurm_resolver.errors import FitError
from slurm_resolver.log import debug, warn_once
from slurm_resolver.tf.causes import OF_PEERS
from slurm_resolver.tf.keras.called_functions import with_called
from slurm_resolver.tf.keras.differences import Entry, compare
from slurm_resolver.tf.keras.one_process import as_one_process
from slurm_resolver.tf.keras.outside_variables import Copies, copies_of
from slurm_resolver.tf.keras.protocols import Model, Strategy
from slurm_resolver.tf.keras.sharing import TENSORS, Structure, type_of
from slurm_resolver.tf.partition.effects import RANDOM, is_drawn
from slurm_resolver.tf.partition.inlining import CALLS
from slurm_resolver.tf.partition.outside_graph import call_outside
from slurm_resolver.tf.partition.plan import Plan
from slurm_resolver.tf.partition.step import plan_step, plan_whole
from slurm_resolver.tf.partition.values import PlanError, names
from slurm_resolver.tf.private_names import Method

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


class PlannedStep(NamedTuple):
    """A step of one process, and how a replica computes it.

    Attributes:
        function: the traced step; its argument is a batch.
        plan: of its graph; None if each worker calls the step itself.
        reason: why each replica computes all rows; None if each computes its own.
        copies: the variables of the replicas.
        multiples: see `replica_step.multiples_of`.
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
        self._refused: dict[str, str] = {}  # why the number of rows has to be a constant, by kind

    def planned(self, spec: Structure, multiples: Multiples | None) -> PlannedStep:
        """Returns the step for a kind of batch.

        Args:
            spec: the types of the whole batch's tensors, in the batch's structure.
            multiples: see `replica_step.multiples_of`; None if each replica computes all rows.
        """
        unknown = tf.nest.map_structure(type_of_any_rows, spec)
        kind = repr(unknown)
        first: Exception | None = None
        if kind not in self._refused:
            try:
                return self._look_up(unknown, multiples)
            except (FitError, *OF_PEERS):
                raise
            except Exception as error:
                if repr(spec) == kind:
                    raise
                first = error
                self._refused[kind] = f"it fails if the number of rows is not a constant: {error}"
        try:
            return self._look_up(spec, multiples, self._refused[kind])
        except (FitError, *OF_PEERS):
            raise
        except Exception:
            if first is None:
                raise
        # It may have left a model half built, which hides it in the second attempt.
        raise first

    def give_up(self, reason: str) -> None:
        """Lets each replica compute all rows from now on."""
        self.fault = reason
        self._planned.clear()

    def run_eagerly(self, data: Structure) -> Structure:
        """Returns the result of a step that runs eagerly, as in one process."""
        return call_outside(lambda: self._take(data))

    def _take(self, data: Structure) -> Structure:
        """Returns the result of a step on tensors, or on symbols of them."""
        with tf.variable_creator_scope(self._make_variable), as_one_process():
            return tf.nest.map_structure(as_tensor, self._step(data))

    def _look_up(
        self, spec: Structure, multiples: Multiples | None, constant: str | None = None
    ) -> PlannedStep:
        kind = repr((spec, multiples))
        if kind not in self._planned:
            self._planned[kind] = call_outside(lambda: self._plan(spec, multiples, constant))
        return self._planned[kind]

    def _plan(
        self, spec: Structure, multiples: Multiples | None, constant: str | None
    ) -> PlannedStep:
        """Traces the step, and plans it.

        Args:
            constant: why the number of rows has to be a constant; None if it has not.
        """
        reason = constant or self.fault or _reason_of_types(spec)
        if multiples is None:
            reason = reason or _UNEQUAL
        local_replicas = self._strategy.sharing.local_replicas
        traced = self._trace(spec)
        self._refuse_collectives(traced.graph)
        if has(traced.graph, _draws_by_xla):
            reason = reason or "XLA draws other random numbers (jit_compile=True)"
        plan = None
        if self._strategy.sharing.replicas > 1:
            if reason is None:
                plan, reason = self._plan_split(traced, multiples or ())
            # What only one replica may compute is sent to the others by a plan.
            if reason is not None and (local_replicas > 1 or has(traced.graph, draws)):
                with contextlib.suppress(Exception):
                    plan = plan_whole(traced)
        if local_replicas > 1 and (
            plan is None or has(traced.graph, lambda one: one.type == "LookupTableInsertV2")
        ):
            raise FitError(
                f"several GPUs in a task cannot compute a step: {reason or 'it fills a table'}. "
                "Start a task for each GPU."
            )
        self._compare_seeds(traced.graph)
        return PlannedStep(
            function=traced,
            plan=plan,
            reason=reason,
            copies=copies_of(self._strategy, traced),
            multiples=multiples,
            takes_any_rows=constant is None,
        )

    def _refuse_collectives(self, graph: tf.Graph) -> None:
        """Raises FitError for what no step of one process has."""
        with contextlib.suppress(PlanError):  # a function is not known
            for operation in with_called(graph.get_operations()):
                if operation.type.startswith("Collective"):
                    raise FitError(
                        f"{self._step.__name__} puts values of all replicas together by itself "
                        f"({operation.name}): leave out the synchronization of tf.Variable"
                    )

    def _compare_seeds(self, graph: tf.Graph) -> None:
        """Raises FitError in every worker if they draw other numbers by TensorFlow's seeds."""
        with contextlib.suppress(PlanError):  # a function is not known
            seeds = [
                (operation.get_attr("seed"), operation.get_attr("seed2"))
                for operation in with_called(graph.get_operations())
                if operation.type in RANDOM
            ]
            if seeds and self._strategy.of_several:
                compare(
                    self._strategy.workers,
                    "in a step that draws numbers",
                    [Entry("the seeds of tf.random", str(seeds))],
                    _SAME_SEEDS,
                )

    def _plan_split(
        self, traced: ConcreteFunction, multiples: Multiples
    ) -> tuple[Plan | None, str | None]:
        """Returns the plan by which each replica computes its own rows, or why there is none."""
        try:
            plan = plan_step(
                traced,
                multiples=multiples,
                sends_inside=self._strategy.sharing.local_replicas == 1,
            )
            return plan, None
        except PlanError as error:
            return None, str(error)
        except Exception as error:
            return None, reason_of_fault(error)

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


def warn_of_sequences(planned: PlannedStep, why: str) -> None:
    """Warns if a second graph of a step begins the sequences of TensorFlow's seeds again."""
    if has(planned.function.graph, _draws_by_seed):
        warn_once(
            f"{why}, so the step draws other random numbers than in one process: draw them with a "
            "keras.random.SeedGenerator"
        )


def as_tensor(value: Any) -> tf.Tensor | None:
    """Converts a number, array or variable."""
    return value if value is None or isinstance(value, TENSORS) else tf.convert_to_tensor(value)


def type_of_any_rows(value: Any) -> tf.TypeSpec | None:
    """Returns the type of a tensor for an unknown number of rows."""
    spec = type_of(value)
    if not isinstance(spec, _TYPES) or not spec.shape.rank:
        return spec
    shape = [None, *spec.shape[1:]]
    if isinstance(spec, tf.RaggedTensorSpec):
        return tf.RaggedTensorSpec(shape, spec.dtype, spec.ragged_rank, spec.row_splits_dtype)
    return type(spec)(shape, spec.dtype)


def _reason_of_types(spec: Structure) -> str | None:
    """Returns why batches of these types are computed whole: not all tensors have rows."""
    if {tf.RaggedTensorSpec, tf.SparseTensorSpec}.isdisjoint(map(type, tf.nest.flatten(spec))):
        return None
    return "a tensor of its batches is ragged or sparse"


def reason_of_fault(error: Exception) -> str:
    """Returns why a step is computed whole whose partition has failed, and logs the traceback."""
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
    if operation.type not in CALLS or not operation.node_def.attr["_XlaMustCompile"].b:
        return False
    kinds = {one.type for one in with_called([operation])}
    return not kinds.isdisjoint(_XLA_DRAWS)


def _draws_by_seed(operation: tf.Operation) -> bool:
    return operation.type in RANDOM and not is_drawn(operation)


def has(graph: tf.Graph, is_wanted: Callable[[tf.Operation], bool]) -> bool:
    """Whether a graph, or a function that it calls, has or may have such an operation."""
    try:
        return any(map(is_wanted, with_called(graph.get_operations())))
    except PlanError:  # a function is not known
        return True
