"""Derives from a traced graph which rows of the batch each of its tensors belongs to.

An `Analysis` is told which tensors are the batch, and derives all others when it is asked, from the
inputs of the operations that compute them. It follows the functions that an operation calls: both
branches of a condition, and the rounds of a loop until no variable of the loop changes its value.
What changes variables is found as well, in the same functions.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator
from typing import Any, Callable, NamedTuple

import tensorflow as tf

from slurm_resolver.tf.rows.operations import OF_SHAPE, STATEFUL
from slurm_resolver.tf.rows.rules import derive, join
from slurm_resolver.tf.rows.values import (
    SAME,
    Found,
    Kind,
    RefutedError,
    UnprovenError,
    Value,
    Values,
    first_unknown,
    unknown,
)

_CHANGING = ("Assign", "LookupTableInsert", "Resource")  # what changes variables, and tables
_PYTHON = ("EagerPyFunc", "PyFunc")  # what runs Python, which may keep its arguments
_ROUNDS = 8  # after which what is known of the variables of a loop must no longer change


class Assignment(NamedTuple):
    """An operation that changes a variable.

    Attributes:
        operation: of TensorFlow.
        variable: the id of the variable's handle outside of all graphs; None if it has none.
        value: what is known of the variable's new value, or of what decides about the change.
        added: what is known of what is added to the variable; None if it is replaced.
    """

    operation: Any
    variable: int | None
    value: Value
    added: Value | None


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
        # By the reference of a tensor: what is declared, and what is derived.
        self._declared: dict[Any, Value] = {}
        self._values: dict[Any, Value] = {}
        self._called: dict[Any, list[Analysis]] = {}  # the functions that an operation calls
        # Why nothing is known of what an operation calls, such as of a condition on the batch.
        self._unknown: dict[Any, Value] = {}

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
            needed = [one for one in _sources(current.op) if not self._known(one)]
            if needed:
                waiting += [current, *needed]
            else:
                self._derive(current.op)
        value: Value = self._known(tensor)
        return value

    def _known(self, tensor: Any) -> Any:
        if not hasattr(tensor, "op"):  # a variable or a constant, made outside of all graphs
            return Value(Kind.SAME, variable=id(tensor))
        reference = tensor.ref()
        return self._declared.get(reference) or self._values.get(reference)

    def _derive(self, operation: Any) -> None:
        try:
            found = self._found(operation)
        except (
            ValueError,
            TypeError,
            LookupError,
            OverflowError,
        ) as error:  # for an unknown rank
            found = unknown(operation, error)
        if isinstance(found, Value):
            if found.reason:
                self._unknown[operation] = found
            found = [found] * len(operation.outputs)
        self._values.update({one.ref(): value for one, value in zip(operation.outputs, found)})

    def _found(self, operation: Any) -> Found:
        values: list[Value] = [self._known(one) for one in _sources(operation)]
        if operation.type in _CALLS:
            return _CALLS[operation.type](self, operation, values)
        if operation.type == "Placeholder" and not values:
            if operation.outputs[0].dtype != tf.resource:
                raise UnprovenError("an argument of a function or loop that is being traced")
        elif operation.type in ("Placeholder", "IdentityN"):
            return values
        not_known = first_unknown(values)
        if not_known:
            return not_known
        is_same = all(value.kind is Kind.SAME for value in values)
        is_harmless = operation.type in STATEFUL or (operation.type in OF_SHAPE and not is_same)
        if operation.op_def.is_stateful and not is_harmless:
            raise UnprovenError("it may differ from worker to worker")
        if is_same:
            reads = operation.type in ("Identity", "ReadVariableOp")
            return values[0] if reads else SAME
        return derive(operation, values)

    # --- Functions -------------------------------------------------------------------------------

    def call(self, operation: Any, values: Values, function: Any = None) -> Values:
        """Derives what the results of a function are.

        Args:
            operation: calls the function.
            values: what is known of the function's arguments.
            function: the attribute that names the function; by default, the operation's "f".
        """
        called = self._called.setdefault(operation, [])
        function = function or operation.get_attr("f")
        graph = self._function_of(operation.graph, function.name)
        if graph is None:
            raise UnprovenError("a function without a graph")
        inner = Analysis(graph, self._function_of)
        inner._declared = self._declared
        inner._values = {one.ref(): value for one, value in zip(graph.inputs, values)}
        called.append(inner)
        return [inner.value_of(output) for output in graph.outputs]

    def condition(self, operation: Any, values: Values) -> Found:
        """Derives what a condition returns: what all branches do, unless the data decides."""
        if operation.type in ("Case", "StatelessCase"):
            functions = operation.get_attr("branches")
        else:
            functions = map(operation.get_attr, ("then_branch", "else_branch"))
        branches = [self.call(operation, values[1:], function) for function in functions]
        joined = [
            functools.reduce(functools.partial(join, output), each)
            for output, each in zip(operation.outputs, zip(*branches))
        ]
        return _unless_batch_decides(values[0], joined)

    def loop(self, operation: Any, values: Values) -> Found:
        """Derives what the variables of a loop are in any round, and whether the data ends it."""
        for _ in range(_ROUNDS):
            self._called.pop(operation, None)
            after = self.call(operation, values, operation.get_attr("body"))
            joined = [join(*each) for each in zip(operation.outputs, values, after)]
            if joined == values:
                (goes_on,) = self.call(operation, values, operation.get_attr("cond"))
                return _unless_batch_decides(goes_on, values)
            values = joined
        raise UnprovenError("a loop with another value in each round")

    # --- Variables -------------------------------------------------------------------------------

    def assigned(self, graph: Any = None, decides: Value = SAME) -> Iterator[Assignment]:
        """Yields what changes variables, by default in the step.

        Args:
            graph: another one, which captures tensors of the step.
            decides: what is known of the conditions around the graph.
        """
        begin = 0 if graph else self._begin
        for operation in (graph or self._graph).get_operations()[begin:]:
            if not operation.op_def.is_stateful:
                continue
            values = [self.value_of(one) for one in operation.inputs]
            if operation.type in _CALLS:
                if operation not in self._called:
                    self._derive(operation)
                condition = self._unknown.get(operation, decides)
                for inner in self._called[operation]:
                    yield from inner.assigned(inner._graph, condition)
                if not self._called[operation]:
                    yield Assignment(operation, None, condition, None)
            elif operation.type in _PYTHON and not all(value.is_plain for value in values):
                value = unknown(operation, UnprovenError("a Python function"))
                yield Assignment(operation, None, value, None)
            elif operation.type.startswith(_CHANGING) and not operation.outputs:
                values = [decides, *values]
                changing = next((one for one in values if not one.is_plain), SAME)
                value = first_unknown(values) or changing
                added = None if decides.reason else self._added(operation, *values[1:3])
                yield Assignment(operation, values[1].variable, value, added)

    def _added(self, operation: Any, variable: Value, value: Value) -> Value | None:
        """Returns what an operation adds to a variable; None if it does something else."""
        total = operation.inputs[1].op
        if operation.type == "AssignVariableOp" and total.type == "AddV2":
            before, added = map(self.value_of, total.inputs)
            is_same = before.variable is not None and before.variable == variable.variable
            return added if is_same else None
        return value if operation.type == "AssignAddVariableOp" else None


_CALLS: dict[str, Callable[[Analysis, Any, Values], Found]] = {
    "PartitionedCall": Analysis.call,
    "StatefulPartitionedCall": Analysis.call,
    "Case": Analysis.condition,
    "If": Analysis.condition,
    "StatelessCase": Analysis.condition,
    "StatelessIf": Analysis.condition,
    "While": Analysis.loop,
    "StatelessWhile": Analysis.loop,
}


def _sources(operation: Any) -> list[Any]:
    """Returns the inputs of an operation, or the outer tensor that it stands for."""
    if operation.type != "Placeholder":
        return list(operation.inputs)
    captures = getattr(operation.graph, "captures", ())
    return [outer for outer, inner in captures if inner is operation.outputs[0]]


def _unless_batch_decides(decides: Value, values: Values) -> Found:
    """Returns values, unless what decides about them differs between the workers."""
    if decides.reason:
        return decides
    if not decides.is_plain:
        raise RefutedError("a condition, or the end of a loop, that depends on the batch")
    return values
