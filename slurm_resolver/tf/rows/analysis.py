"""Derives from a traced graph which rows of the batch each of its tensors belongs to.

An `Analysis` is told which tensors are the batch, and derives all others when it is asked, from the
inputs of the operations that compute them. It follows the functions that an operation calls: both
branches of a condition, and the rounds of a loop until no variable of the loop changes its value.
What changes variables is found as well, in the same functions.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import Any, Callable, NamedTuple

import tensorflow as tf

from slurm_resolver.tf.rows.operations import FOLDED, STATEFUL
from slurm_resolver.tf.rows.rules import derive, join
from slurm_resolver.tf.rows.values import (
    SAME,
    Kind,
    Reason,
    RefutedError,
    UnprovenError,
    Value,
    Values,
)

_CHANGING = ("Assign", "LookupTableInsert", "Resource")  # what changes variables, and tables
_ROUNDS = 8  # after which what is known of the variables of a loop must no longer change


class Assignment(NamedTuple):
    """An operation that changes a variable.

    Attributes:
        operation: of TensorFlow.
        handle: of the variable, outside of all graphs.
        value: what is known of the variable's new value, or of what decides about the change.
        added: what is known of what is added to the variable; the kind UNKNOWN if it is replaced.
    """

    operation: Any
    handle: Any
    value: Value
    added: Value


class Analysis:
    """What is known of the tensors of a graph, and of the functions that it calls.

    Args:
        graph: that is being traced. What it contains already is not part of the step.
        function_of: returns the graph of a function, given a graph and the function's name.
    """

    def __init__(self, graph: Any, function_of: Callable[[Any, str], Any]) -> None:
        self._graph = graph
        self._function_of = function_of
        self._begin = len(graph.get_operations())
        # By the reference of a tensor: what is declared, what is derived, and for an argument that
        # stands for a variable its handle.
        self._declared: dict[Any, Value] = {}
        self._values: dict[Any, Value] = {}
        self._handles: dict[Any, Any] = {}
        self._called: dict[Any, list[Analysis]] = {}  # the functions that an operation calls
        self._decides: dict[Any, Value] = {}  # a condition or loop that depends on the batch

    def declare(self, tensor: Any, value: Value) -> None:
        """Notes what is known of a tensor from elsewhere, whatever its operation is."""
        self._declared[tensor.ref()] = value

    def value_of(self, tensor: Any) -> Value:
        """Returns what is known of a tensor."""
        waiting = [tensor]
        while waiting:  # no recursion: graphs are deep
            current = waiting.pop()
            if self._known(current):
                continue
            needed = [one for one in _sources(current) if not self._known(one)]
            if needed:
                waiting += [current, *needed]
            else:
                self._derive(current)
        value = self._known(tensor)
        assert value is not None
        return value

    def _known(self, tensor: Any) -> Value | None:
        reference = tensor.ref()
        return self._declared.get(reference) or self._values.get(reference)

    def _derive(self, tensor: Any) -> None:
        operation = tensor.op
        values: list[Any] = [self._known(one) for one in _sources(tensor)]
        try:
            found = self._results(operation, values)
        except UnprovenError as error:
            found = _unknown(operation, error)
        except (ValueError, TypeError, LookupError) as error:  # such as for an unknown rank
            found = _unknown(operation, UnprovenError(f"no rule for its inputs: {error}"))
        if not isinstance(found, list):
            found = [found] * len(operation.outputs)
        self._values.update({one.ref(): value for one, value in zip(operation.outputs, found)})

    def _results(self, operation: Any, values: Values) -> Any:
        if operation.type == "Placeholder":
            return values or _argument(operation.outputs[0])
        if operation.type in _CALLS:
            return _CALLS[operation.type](self, operation, values)
        if operation.type != "IdentityN":
            for value in values:
                if value.kind is Kind.UNKNOWN:
                    return value
        if all(value == SAME for value in values) and not _is_of_constants(operation):
            if operation.type in STATEFUL or not operation.op_def.is_stateful:
                return SAME
            raise UnprovenError("it may differ from worker to worker")
        return derive(operation, values)

    # --- Functions -------------------------------------------------------------------------------

    def call(self, operation: Any, values: Values, name: str = "f", first: int = 0) -> Values:
        """Derives what the results of a function are.

        Args:
            operation: calls the function.
            values: what is known of the operation's inputs.
            name: the operation's attribute that names the function.
            first: the number of the input that is the function's first argument.
        """
        function = operation.get_attr(name).name
        graph = self._function_of(operation.graph, function)
        if graph is None:
            raise UnprovenError("a function without a graph")
        handles = [self._handle_of(one) for one in operation.inputs[first:]]
        references = [one.ref() for one in graph.inputs]
        inner = Analysis(graph, self._function_of)
        inner._begin = 0
        inner._declared = self._declared
        inner._values = dict(zip(references, values[first:]))
        inner._handles = dict(zip(references, handles))
        self._called.setdefault(operation, []).append(inner)
        return [inner.value_of(output) for output in graph.outputs]

    def condition(self, operation: Any, values: Values) -> Values:
        """Derives what a condition returns: what both branches do, unless the data decides."""
        branches = [
            self.call(operation, values, name, first=1) for name in ("then_branch", "else_branch")
        ]
        if not values[0].is_plain:
            return self._depend(operation, values[0], "a condition")
        return [_joined(operation, *pair) for pair in zip(*branches)]

    def loop(self, operation: Any, values: Values) -> Values:
        """Derives what the variables of a loop are in any round, and whether the data ends it."""
        for _ in range(_ROUNDS):
            self._called.pop(operation, None)
            after = self.call(operation, values, "body")
            joined = [_joined(operation, *pair) for pair in zip(values, after)]
            if joined == values:
                break
            values = joined
        else:
            raise UnprovenError("a loop with another value in each round")
        ends = self.call(operation, values, "cond")[0]
        if not ends.is_plain:
            return self._depend(operation, ends, "the end of a loop")
        return values

    def _depend(self, operation: Any, condition: Value, what: str) -> Values:
        """Returns the values of what depends on a condition that differs between the workers."""
        if condition.kind is not Kind.UNKNOWN:
            error = RefutedError(f"{what} that depends on the batch")
            condition = _unknown(operation, error)
        self._decides[operation] = condition
        return [condition] * len(operation.outputs)

    # --- Variables -------------------------------------------------------------------------------

    def assigned(self, graph: Any = None, decides: Value = SAME) -> Iterator[Assignment]:
        """Yields what changes variables, by default in the step.

        Args:
            graph: another one, which captures tensors of the step.
            decides: what is known of the conditions around the graph.
        """
        begin = 0 if graph else self._begin
        for operation in (graph or self._graph).get_operations()[begin:]:
            if operation.type in _CALLS and operation.op_def.is_stateful:
                yield from self._assigned_in_call(operation, decides)
            elif operation.type.startswith(_CHANGING) and not operation.outputs:
                values = [self.value_of(one) for one in operation.inputs[1:]]
                value = next((one for one in (decides, *values) if not one.is_plain), SAME)
                added = _added(operation)
                yield Assignment(
                    operation,
                    self._handle_of(operation.inputs[0]),
                    value,
                    added=_REPLACED if added is None or decides != SAME else self.value_of(added),
                )

    def _assigned_in_call(self, operation: Any, decides: Value) -> Iterator[Assignment]:
        values = [self.value_of(one) for one in operation.inputs]
        try:
            if operation not in self._called:
                _CALLS[operation.type](self, operation, values)
        except UnprovenError as error:
            yield Assignment(operation, None, _unknown(operation, error), added=_REPLACED)
            return
        for inner in self._called[operation]:
            yield from inner.assigned(decides=self._decides.get(operation, decides))

    def _handle_of(self, tensor: Any) -> Any:
        """Returns the handle outside of all graphs that a tensor stands for, if it is one."""
        while tensor.dtype == tf.resource and hasattr(tensor, "op"):
            outer = _captured(tensor)
            if tensor.ref() in self._handles:
                return self._handles[tensor.ref()]
            if not outer:
                break
            (tensor,) = outer
        return tensor


# What is known of what is added to a variable that gets another value.
_REPLACED = Value(Kind.UNKNOWN, reason=Reason("a new value", refuted=True))

_CALLS: dict[str, Callable[[Analysis, Any, Values], Values]] = {
    "PartitionedCall": Analysis.call,
    "StatefulPartitionedCall": Analysis.call,
    "If": Analysis.condition,
    "StatelessIf": Analysis.condition,
    "While": Analysis.loop,
    "StatelessWhile": Analysis.loop,
}


def _sources(tensor: Any) -> list[Any]:
    """Returns what a tensor is computed of: inputs, or the outer tensor that was captured."""
    if tensor.op.type != "Placeholder":
        return list(tensor.op.inputs)
    return [outer for outer in _captured(tensor) if hasattr(outer, "op")]


def _captured(tensor: Any) -> list[Any]:
    """Returns the outer tensor, or one made outside of all graphs, that a tensor stands for."""
    captures = getattr(tensor.graph, "captures", ())
    return [outer for outer, inner in captures if inner is tensor]


def _argument(placeholder: Any) -> Value:
    """Returns the value of a placeholder that stands for no tensor of an outer graph."""
    if placeholder.dtype == tf.resource or _captured(placeholder):
        return SAME  # a variable, or a constant made outside of all graphs
    raise UnprovenError("an argument of a function or loop that is being traced")


def _is_of_constants(operation: Any) -> bool:
    """Whether sizes may be computed of what an operation computes from constants."""
    return (
        operation.type in FOLDED
        and operation.outputs[0].dtype.is_integer
        and all(tensor.op.type == "Const" for tensor in operation.inputs)
    )


def _added(operation: Any) -> Any:
    """Returns the tensor that an operation adds to a variable; None if it does something else."""
    handle, value = operation.inputs[:2]
    if operation.type in ("AssignAddVariableOp", "AssignSubVariableOp"):
        return value
    if operation.type != "AssignVariableOp" or value.op.type not in ("AddV2", "Sub"):
        return None
    for one, other in itertools.permutations(value.op.inputs):
        while one.op.type == "Identity":
            (one,) = one.op.inputs
        if one.op.type == "ReadVariableOp" and one.op.inputs[0] is handle:
            return other
        if value.op.type == "Sub":
            break  # only the first one is kept
    return None


def _unknown(operation: Any, error: UnprovenError) -> Value:
    reason = Reason(str(error), isinstance(error, RefutedError), operation)
    return Value(Kind.UNKNOWN, reason=reason)


def _joined(operation: Any, one: Value, other: Value) -> Value:
    try:
        return join(one, other)
    except UnprovenError as error:
        return _unknown(operation, error)
