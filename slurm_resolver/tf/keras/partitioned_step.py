"""Keras 3's train, test and predict steps, as one process traces them, on a replica's rows.

A step of a `Share` goes through these functions, one after another::

    StepFunction      reads the batch, and calls `_in_replica` in each replica
    part_of_replica   takes the replica's rows of the batch
    _planned          traces the model's step once for each kind of batch, without a strategy, and
                      plans it (`partition`)
    write_step        writes the plan for the replica's rows
    _AddUp            adds up over all replicas, and compares their batches and learning rates in
                      the same collective
"""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from typing import Any, NamedTuple

import tensorflow as tf

from slurm_resolver.tf.keras.called_functions import with_called
from slurm_resolver.tf.keras.one_process import as_one_process
from slurm_resolver.tf.keras.outside_graph import call_outside
from slurm_resolver.tf.keras.replica_step import add_up, replica_number
from slurm_resolver.tf.keras.rows_of_replica import (
    all_of_batch,
    is_not_split,
    part_of_replica,
)
from slurm_resolver.tf.keras.sharing import Share, names_of_tensors, without_optionals
from slurm_resolver.tf.keras.split_or_whole import ComputeWholeError
from slurm_resolver.tf.keras.step_comparison import Comparison
from slurm_resolver.tf.keras.step_function import StepFunction, as_tensor
from slurm_resolver.tf.partition.collectives import OwnRows
from slurm_resolver.tf.partition.effects import is_drawn
from slurm_resolver.tf.partition.plan import Plan
from slurm_resolver.tf.partition.step import plan_step, plan_whole, write_step
from slurm_resolver.tf.partition.values import PlanError
from slurm_resolver.tf.private_names import Method


class Traced(NamedTuple):
    """A step of one process, and how a replica computes it.

    Attributes:
        function: the traced step; its arguments are the tensors of a batch.
        plan: of its graph; None if each worker must call the step itself.
        whole: whether each replica computes all rows.
        draws: whether one replica computes something for the others, such as random numbers.
    """

    function: Any
    plan: Plan | None
    whole: bool
    draws: bool


class PartitionedStepFunction(StepFunction):
    """A model's function for its steps; see the module."""

    # Of the base class.
    _kind: str
    _made: int
    _model: Any
    _step: Method
    _strategy: Any
    _traced: set[str]
    _whole: ComputeWholeError | None

    def __init__(self, model: Any, kind: str) -> None:
        self._plans: dict[Any, Traced] = {}
        super().__init__(model, kind)

    def _in_replica(self, batch: Any) -> Any:
        """Computes a replica's rows of a `Share`, or what this worker has read itself."""
        replica = replica_number()
        if isinstance(batch, Share):
            self._check_kinds(batch)
            digest = batch.digest
            names: Sequence[str] = names_of_tensors(batch)
        else:
            digest = None
            names = ()
        compared = self.comparison.row(replica, digest, names)
        traced = self._planned(batch, replica)
        if self._whole:  # perhaps since it was planned
            self.check_whole(batch, self._whole)
        add = _AddUp(self.comparison, compared)

        def by_part() -> list[Any]:
            part, own = self._batch_of_replica(batch, replica)
            inputs = self._inputs(traced, part, replica)
            assert traced.plan
            return write_step(traced.plan, own, inputs, add)

        def all_rows() -> list[Any]:
            add([])  # compares the workers
            return self._compute_all_rows(traced, batch, replica)

        sharing = self._strategy.sharing
        is_whole: Any = traced.plan is None
        if not traced.whole:
            is_whole = is_not_split(batch, sharing)
        if sharing.local_replicas > 1 and is_whole is not True:
            # A condition cannot add up what the replicas of a worker have.
            is_whole = False
        if is_whole is True:
            results = all_rows()
        elif is_whole is False:
            results = by_part()
        else:
            results = tf.cond(is_whole, all_rows, by_part)
        outputs = traced.function.structured_outputs
        return tf.nest.pack_sequence_as(outputs, results, expand_composites=True)

    def _compute_all_rows(self, traced: Traced, batch: Any, replica: int) -> list[Any]:
        """Computes all rows in each replica: by the traced step itself, where that is possible."""
        sharing = self._strategy.sharing
        part, own = all_of_batch(batch, replica, sharing)
        inputs = self._inputs(traced, part, replica)
        function = traced.function
        if sharing.local_replicas == 1 and (traced.plan is None or not traced.draws):
            arguments = len(inputs) - len(function.captured_inputs)
            found = function(*inputs[:arguments])
            return list(tf.nest.flatten(found, expand_composites=True))
        return write_step(plan_whole(function), own, inputs, add_up)

    def _inputs(self, traced: Traced, part: Any, replica: int) -> list[Any]:
        """Returns the inputs of the traced step: a batch, and what the step captures."""
        arguments = tf.nest.flatten(without_optionals(part), expand_composites=True)
        local = replica - self._strategy.sharing.first_replica
        copies = self._strategy.copies
        captured = [
            copies[id(one)].values[local].handle if id(one) in copies else one
            for one in traced.function.captured_inputs
        ]
        return [*filter(tf.is_tensor, arguments), *captured]

    def _batch_of_replica(self, batch: Any, replica: int) -> tuple[Any, OwnRows]:
        sharing = self._strategy.sharing
        if self._whole:
            return all_of_batch(batch, replica, sharing)
        return part_of_replica(batch, replica, sharing)

    def _check_kinds(self, batch: Share) -> None:
        """Computes batches whole that have tensors without a number of rows."""
        if self._whole or self._strategy.sharing.replicas == 1:
            return
        values = tf.nest.flatten(batch.batch)
        if any(isinstance(value, (tf.RaggedTensor, tf.SparseTensor)) for value in values):
            self._whole = ComputeWholeError("a tensor of its batches is ragged or sparse")
            self.check_whole(batch, self._whole)

    def _trace(self, name: str, data: Any, chooses: bool = False) -> None:
        """Traces a function, unless it runs eagerly."""
        if name in self._traced or self._model.run_eagerly or tf.config.functions_run_eagerly():
            return
        getattr(self, name).get_concrete_function(data)
        self._traced.add(name)

    def _planned(self, batch: Any, replica: int) -> Traced:
        """Returns the plan for batches like this one."""
        part, _ = self._batch_of_replica(batch, replica)
        spec = tf.nest.map_structure(_spec, without_optionals(part))
        unknown = spec if self._whole else tf.nest.map_structure(_open, spec)
        key = repr(unknown), bool(self._whole)
        if key not in self._plans:
            self._plans[key] = call_outside(lambda: self._plan(unknown, spec))
        return self._plans[key]

    def _plan(self, unknown: Any, known: Any) -> Traced:
        """Traces the model's step, and plans it.

        What fails for an unknown number of rows is traced for a known one, and computed whole.
        """
        try:
            traced = self._trace_alone(unknown)
        except Exception as error:
            if self._whole:
                raise
            traced = self._trace_alone(known)
            reason = f"it fails if the number of rows is not a constant: {error}"
            self._whole = ComputeWholeError(reason)
        plan = None
        if not self._whole:
            try:
                plan = plan_step(traced)
            except PlanError as error:
                self._whole = ComputeWholeError(str(error))
        whole = plan is None
        if whole:
            with contextlib.suppress(PlanError):
                plan = plan_whole(traced)
        return Traced(
            function=traced,
            plan=plan,
            whole=whole,
            draws=_draws(traced.graph),
        )

    def _trace_alone(self, spec: Any) -> Any:
        """Traces the model's step until it makes no variable."""
        flat = [one for one in tf.nest.flatten(spec, expand_composites=True) if one is not None]
        while True:
            made = self._made
            function = tf.function(self._step_alone(spec), autograph=False)
            traced = function.get_concrete_function(*flat)
            if self._made == made:
                return traced

    def _step_alone(self, spec: Any) -> Method:
        """Returns the model's step as a function of the tensors of a batch."""

        def step(*tensors: Any) -> Any:
            given = iter(tensors)
            flat = [
                one if one is None else next(given)
                for one in tf.nest.flatten(spec, expand_composites=True)
            ]
            data = tf.nest.pack_sequence_as(spec, flat, expand_composites=True)
            with tf.variable_creator_scope(self.make_variable), as_one_process():
                return tf.nest.map_structure(as_tensor, self._step(data))

        return step

    def run_step(self, batch: Any) -> Any:
        """Returns the result of a step; one that runs eagerly computes all rows, as one process."""
        if not tf.executing_eagerly():
            return super().run_step(batch)
        if isinstance(batch, Share):
            self.check_whole(batch, ComputeWholeError("it runs eagerly"))
            batch = batch.batch
        data = without_optionals(self._strategy.experimental_local_results(batch)[0])

        def step() -> Any:
            with as_one_process():
                return tf.nest.map_structure(as_tensor, self._step(data))

        return call_outside(step)


class _AddUp:
    """Adds up vectors over all replicas, and compares the workers in the first sum of a step."""

    def __init__(self, comparison: Comparison, compared: Any) -> None:
        self._comparison = comparison
        self._compared = compared
        self._compared_in: list[
            Any
        ] = []  # the graphs of a step, such as the branches of a condition

    def __call__(self, vectors: Sequence[Any]) -> list[Any]:
        graph = tf.compat.v1.get_default_graph()
        if graph in self._compared_in:
            return add_up(vectors)
        self._compared_in.append(graph)
        *sums, table = add_up([*vectors, self._compared])
        self._comparison.check(table)
        return sums


def _draws(graph: Any) -> bool:
    """Whether a graph, or a function that it calls, has an operation of one replica."""
    return any(map(is_drawn, with_called(graph.get_operations())))


def _spec(value: Any) -> Any:
    """Returns the type of a batch's tensor."""
    return value if value is None else tf.type_spec_from_value(value)


def _open(spec: Any) -> Any:
    """Returns the type of a tensor for an unknown number of rows."""
    if isinstance(spec, tf.TensorSpec) and spec.shape.rank:
        return tf.TensorSpec([None, *spec.shape[1:]], spec.dtype)
    return spec
