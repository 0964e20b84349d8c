"""The operations of a graph, with those of the functions that it calls in their place.

Tensors have numbers, since a function may be called several times.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Sequence
from typing import Any

from slurm_resolver.tf import private_names
from slurm_resolver.tf.partition.scratch import Scratch
from slurm_resolver.tf.partition.values import PlanError

CALLS = ("PartitionedCall", "StatefulPartitionedCall")
# The name of what `step.of_own_rows` makes, and a part of the name of its gradient.
OF_OWN_ROWS = "computed_of_own_rows"


@dataclasses.dataclass(eq=False)
class Node:
    """An operation in one of the places where it is computed.

    Attributes:
        operation: of the traced graph.
        inputs: the numbers of its inputs.
        outputs: the numbers of its outputs.
        after: what has to be computed before, besides its inputs.
        functions: those that it calls, by name.
    """

    operation: Any
    inputs: tuple[int, ...]
    outputs: tuple[int, ...]
    after: tuple[Node, ...]
    functions: dict[str, Flat] = dataclasses.field(default_factory=dict)

    def function(self, name: str) -> Flat:
        """Returns a function that the operation calls, such as the body of a loop."""
        if name not in self.functions:
            self.functions[name] = Flat(function_graph(self.operation, name))
        return self.functions[name]


class Flat:
    """A graph without calls of functions, but for those of own rows.

    Attributes:
        nodes: the operations on which an output or a side effect depends.
        inputs: the numbers of the graph's inputs.
        outputs: the numbers of its outputs.
        tensors: the traced tensors, by number.
        makers: the node that computes a tensor, by number; none for an input.
        scratch: where shapes are inferred.
    """

    def __init__(self, graph: Any) -> None:
        self.tensors: list[Any] = []
        self.makers: dict[int, Node] = {}
        self.scratch = Scratch()
        numbers: dict[Any, int] = {}
        self.inputs = tuple(self._number(tensor, numbers) for tensor in graph.inputs)
        nodes: list[Node] = []
        # The results of calls, in the functions, and those of IdentityN, before it.
        self._results: dict[int, int] = {}
        self._add(
            graph,
            numbers,
            (),
            nodes,
        )
        self.outputs = self._resolved(numbers[tensor.ref()] for tensor in graph.outputs)
        for node in nodes:
            node.inputs = self._resolved(node.inputs)
        self.nodes = self._needed(nodes)

    def _resolved(self, numbers: Iterable[int]) -> tuple[int, ...]:
        """Returns the numbers of tensors, and not of results of calls."""
        found = []
        for number in numbers:
            while number in self._results:
                number = self._results[number]
            found.append(number)
        return tuple(found)

    def _number(self, tensor: Any, numbers: dict[Any, int]) -> int:
        """Returns the number of a tensor of a call, whose numbers so far are given."""
        number = numbers.setdefault(tensor.ref(), len(self.tensors))
        if number == len(self.tensors):
            self.tensors.append(tensor)
        return number

    def _add(
        self,
        graph: Any,
        numbers: dict[Any, int],
        before: Sequence[Node],
        nodes: list[Node],
    ) -> list[Node]:
        """Adds the operations of a graph.

        Args:
            numbers: of the graph's inputs; those of its other tensors are added.
            before: what has to be computed before.

        Returns:
            What it has added.
        """
        arguments = {tensor.op for tensor in graph.inputs}
        made: dict[Any, list[Node]] = {}
        added: list[Node] = []
        for operation in graph.get_operations():
            if operation in arguments:
                continue
            after = [*before]
            for one in operation.control_inputs:
                after += made.get(one, ())
            if operation.type == "IdentityN":
                for given, result in zip(operation.inputs, operation.outputs):
                    after += made.get(given.op, ())
                    self._results[self._number(result, numbers)] = self._number(given, numbers)
                made[operation] = after
                continue
            if operation.type in CALLS and OF_OWN_ROWS not in operation.get_attr("f").name:
                made[operation] = self._call(
                    operation,
                    numbers,
                    after,
                    nodes,
                )
            else:
                made[operation] = [
                    self._node(
                        operation,
                        numbers,
                        after,
                    )
                ]
                nodes += made[operation]
            added += made[operation]
        return added

    def _node(
        self,
        operation: Any,
        numbers: dict[Any, int],
        after: Sequence[Node],
    ) -> Node:
        inputs = tuple(self._number(tensor, numbers) for tensor in operation.inputs)
        outputs = tuple(self._number(tensor, numbers) for tensor in operation.outputs)
        node = Node(
            operation,
            inputs,
            outputs,
            tuple(after),
        )
        for number in outputs:
            self.makers[number] = node
        return node

    def _call(
        self,
        operation: Any,
        numbers: dict[Any, int],
        after: Sequence[Node],
        nodes: list[Node],
    ) -> list[Node]:
        """Adds the operations of a function that is called, and returns them."""
        graph = function_graph(operation, operation.get_attr("f").name)
        given = [self._number(tensor, numbers) for tensor in operation.inputs]
        inner = {tensor.ref(): number for tensor, number in zip(graph.inputs, given)}
        added = self._add(
            graph,
            inner,
            after,
            nodes,
        )
        for tensor, result in zip(operation.outputs, graph.outputs):
            # A loop that comes before may have it as an input: gradients add inputs to loops.
            self._results[self._number(tensor, numbers)] = self._number(result, inner)
        return added

    def _needed(self, nodes: Iterable[Node]) -> list[Node]:
        """Returns the nodes on which an output or a side effect depends, in their order."""
        nodes = list(nodes)
        waiting = [node for node in nodes if node.operation.op_def.is_stateful]
        waiting += [self.makers[number] for number in self.outputs if number in self.makers]
        needed: set[Node] = set()
        while waiting:
            node = waiting.pop()
            if node not in needed:
                needed.add(node)
                waiting += node.after
                waiting += [self.makers[one] for one in node.inputs if one in self.makers]
        return [node for node in nodes if node in needed]


def function_graph(operation: Any, name: str) -> Any:
    """Returns the graph of a function that an operation calls."""
    graph = operation.graph
    while graph is not None:
        found = private_names.FUNCTION_OF_GRAPH.of(graph)(name)
        if found is not None:
            if hasattr(found, "graph"):
                return found.graph
            break
        graph = getattr(
            graph,
            "outer_graph",
            None,
        )
    # `tf.nn.ctc_loss` makes functions as TensorFlow 1 did, whose graphs are unknown.
    raise PlanError(f"the function of {operation.type} {operation.name} is unknown")
