"""The operations of a graph, with those of the functions that it calls in their place.

Tensors have numbers, since a function may be called several times.
"""

from __future__ import annotations

import copy
import dataclasses
import itertools
from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from slurm_resolver.tf import private_names
from slurm_resolver.tf.partition.values import PlanError, TensorNumbers, Tensors

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
        is_compiled: whether it is of a function that XLA compiles.
        functions: those that it calls, by name.
    """

    operation: tf.Operation
    inputs: TensorNumbers
    outputs: TensorNumbers
    after: Sequence[Node]
    is_compiled: bool
    functions: dict[str, Flat] = dataclasses.field(default_factory=dict)

    @property
    def kind(self) -> str:
        """The type of the operation, such as "MatMul"."""
        return str(self.operation.type)

    def function(self, attribute: Any) -> Flat:
        """Returns a function that an attribute names, such as the body of a loop."""
        name = attribute.name
        if name not in self.functions:
            graph = function_graph(self.operation, name)
            self.functions[name] = Flat(graph, self.is_compiled)
        return self.functions[name]


class Flat:
    """A graph without calls of functions, but for those of own rows.

    Attributes:
        nodes: the operations on which an output or a side effect depends.
        inputs: the numbers of the graph's inputs.
        outputs: the numbers of its outputs.
        tensors: the traced tensors, by number.
        makers: the node that computes a tensor, by number; none for an input.
    """

    def __init__(self, graph: tf.Graph, is_compiled: bool = False) -> None:
        self.tensors: list[tf.Tensor] = []
        self.makers: dict[int, Node] = {}
        self._nodes: list[Node] = []  # each after those of its inputs
        self.inputs = self._add_tensors(graph.inputs)
        self.outputs, _ = self._add(
            graph,
            self.inputs,
            [],
            is_compiled,
        )
        self.nodes = self._needed()

    def _add_tensors(self, tensors: Tensors) -> TensorNumbers:
        """Returns the numbers of new tensors."""
        first = len(self.tensors)
        self.tensors += tensors
        return range(first, len(self.tensors))

    def _add(
        self,
        graph: tf.Graph,
        inputs: TensorNumbers,
        before: list[Node],
        is_compiled: bool,
    ) -> tuple[TensorNumbers, list[Node]]:
        """Adds the operations of a graph, with those of the functions that they only call.

        Args:
            inputs: the numbers of its inputs.
            before: what has to be computed before.
            is_compiled: whether XLA compiles it.

        Returns:
            The numbers of its outputs, and all that it computes.
        """
        numbers = {tensor.ref(): number for tensor, number in zip(graph.inputs, inputs)}
        operations = graph.get_operations()
        places = {operation: place for place, operation in enumerate(operations)}
        made: dict[tf.Operation, list[Node]] = {tensor.op: [] for tensor in graph.inputs}

        def add(operation: tf.Operation) -> None:
            if operation in made:
                return
            # These may come later in the graph: gradients add inputs to loops.
            for tensor in operation.inputs:
                add(tensor.op)
            after = [*before]
            for one in operation.control_inputs:
                # A result waits for operations that come later, for their effects alone.
                if places[one] < places[operation]:
                    add(one)
                    after += made[one]
            given = [numbers[tensor.ref()] for tensor in operation.inputs]
            function = _called_function(operation)
            if function:
                results, nodes = self._add(
                    function_graph(operation, function),
                    given,
                    after,
                    is_compiled or operation.node_def.attr["_XlaMustCompile"].b,
                )
            elif operation.type == "IdentityN":
                results = given
                nodes = after + [self.makers[one] for one in given if one in self.makers]
            else:
                results = self._add_tensors(operation.outputs)
                nodes = [
                    Node(
                        operation,
                        given,
                        results,
                        after,
                        is_compiled,
                    )
                ]
                self.makers.update(dict.fromkeys(results, nodes[0]))
                self._nodes += nodes
            made[operation] = nodes
            numbers.update(zip([tensor.ref() for tensor in operation.outputs], results))

        for operation in operations:
            add(operation)
        nodes = dict.fromkeys(itertools.chain(*made.values()))
        return [numbers[tensor.ref()] for tensor in graph.outputs], [*nodes]

    def made(self, number: int) -> tuple[str, TensorNumbers]:
        """Returns the type and the inputs of the operation that computes a tensor.

        For an input of the graph, these are "" and nothing.
        """
        node = self.makers.get(number)
        return (node.kind, node.inputs) if node else ("", ())

    def _needed(self) -> list[Node]:
        """Returns the nodes on which an output or a side effect depends, in their order."""
        nodes: list[Node] = []
        numbers = {*self.outputs}
        before: set[Node] = set()
        for node in reversed(self._nodes):
            has_effect = node in before or node.operation.op_def.is_stateful
            if has_effect or not numbers.isdisjoint(node.outputs):
                nodes.append(node)
                numbers.update(node.inputs)
                before.update(node.after)
        return nodes[::-1]


def _called_function(operation: tf.Operation) -> str:
    """Returns the name of the function that an operation only calls; "" for other operations."""
    name: str = operation.type
    if name in CALLS:
        name = operation.get_attr("f").name
        return "" if OF_OWN_ROWS in name else name
    # In TensorFlow 1's graphs, the type of a call is the name of the function.
    return "" if hasattr(tf.raw_ops, name) or not _find_function(operation, name) else name


def function_graph(operation: tf.Operation, name: str) -> tf.Graph:
    """Returns the graph of a function that an operation calls, with its inputs and outputs.

    Raises:
        PlanError: if TensorFlow does not know the function, or cannot make its graph.
    """
    function = _find_function(operation, name)
    if hasattr(function, "graph"):
        return function.graph
    try:
        # `tf.nn.ctc_loss` makes functions that have a definition alone, as TensorFlow 1 did. It
        # says that the shapes of the arguments are unknown.
        definition = copy.deepcopy(function.definition)
        definition.arg_attr.clear()
        given = operation.inputs[-len(definition.signature.input_arg) :]
        with operation.graph.as_default():
            return private_names.GRAPH_OF_DEFINITION.get()(
                definition,
                input_shapes=[tensor.shape for tensor in given],
                include_library_functions=True,
            )
    except Exception as error:
        raise PlanError(
            f"the function of {operation.type} {operation.name} is unknown ({error})"
        ) from error


def _find_function(operation: tf.Operation, name: str) -> Any:
    """Returns a function that the graph of an operation has; None without it."""
    graph = operation.graph
    function = None
    while function is None and graph is not None:
        function = private_names.FUNCTION_OF_GRAPH.of(graph)(name)
        graph = getattr(graph, "outer_graph", None)
    return function
