"""Finds out from a dataset's graph which parts of its elements are the same in all workers.

Every worker reads a dataset for itself. The same operations give the same elements, except for
random operations, such as those that augment images, and for Python functions, whose results are
unknown.
"""

from __future__ import annotations

import enum
import re
from collections.abc import Mapping
from typing import Any

import tensorflow as tf

from slurm_resolver.tf import private_names

_RANDOM = re.compile(
    "Random(Uniform|StandardNormal|Gamma|Poisson)|TruncatedNormal|Multinomial|"
    "Stateless(Random|Sample|Truncated|Parameterized)|RandomDataset|Rng"
)
_PYTHON = re.compile("PyFunc|GeneratorDataset")


class Origin(enum.IntEnum):
    """Where a tensor of a batch comes from; of two, the lower one decides."""

    RANDOM = 0  # from a random operation: it may differ from worker to worker
    PYTHON = 1  # from a function of Python, which may be random
    EQUAL = 2  # from operations that compute the same in every worker


def find_origins(dataset: tf.data.Dataset) -> list[Origin]:
    """Returns the origin of each tensor of a dataset's elements, in the order of `tf.nest`."""
    definition = tf.compat.v1.GraphDef.FromString(serialized_graph(dataset))
    nodes = {node.name: node for node in definition.node}
    functions = {each.signature.name: each for each in definition.library.function}

    def origins_of(name: str) -> list[Origin]:
        """Returns the origins of the tensors of the elements of a dataset's node.

        It is empty for another node.
        """
        node = nodes[name.lstrip("^").split(":")[0]]
        given = [origins_of(one) for one in node.input]  # [] for a tensor, which is equal
        if "MapDataset" in node.op:
            captured = [min(one, default=Origin.EQUAL) for one in given[1:]]
            function = functions[node.attr["f"].func.name]
            return _origins_of_results(function, [*given[0], *captured], functions)
        # Batches, shuffles and the like keep each tensor; ZipDataset joins the tensors of several.
        found = [origin for one in given for origin in one]
        count = len(node.attr["output_shapes"].list.shape)
        if len(found) != count:
            lowest = min(found, default=Origin.EQUAL)
            found = [lowest] * count
        own = _lowest(node, functions)
        return [min(own, origin) for origin in found]

    count = len(tf.nest.flatten(dataset.element_spec))
    for node in definition.node:
        if node.op == "_Retval":
            found = origins_of(node.input[0])
            if len(found) == count:
                return found
    # A graph may be too large to be read (2 GiB); a dataset may hide its tensors.
    return [Origin.PYTHON] * count


def serialized_graph(dataset: tf.data.Dataset) -> bytes:
    """Returns the graph of a dataset as a GraphDef, or b"" if it cannot be had."""
    try:
        ignore = tf.data.experimental.ExternalStatePolicy.IGNORE
        return bytes(private_names.GRAPH.of(dataset)(external_state_policy=ignore).numpy())
    except (tf.errors.OpError, ValueError):
        return b""


def _origins_of_results(
    function: Any, given: list[Origin], functions: Mapping[str, Any]
) -> list[Origin]:
    """Returns the origins of a function's results, given those of its arguments."""
    names = (argument.name for argument in function.signature.input_arg)
    known: dict[str, Origin] = dict(zip(names, given))
    nodes = {node.name: node for node in function.node_def}

    def origin_of(tensor: str) -> Origin:
        source = tensor.split(":")[0]
        if source in nodes and source not in known:
            node = nodes[source]
            known[source] = Origin.EQUAL  # ends a loop
            needed = (origin_of(one) for one in node.input if not one.startswith("^"))
            known[source] = min([_lowest(node, functions), *needed])
        # It may be an argument that the dataset's nodes do not show.
        return known.get(source, Origin.PYTHON)

    return [origin_of(function.ret[out.name]) for out in function.signature.output_arg]


def _lowest(node: Any, functions: Mapping[str, Any]) -> Origin:
    """Returns the lowest origin of a node and of those in the functions that it calls."""
    if _RANDOM.search(node.op):
        return Origin.RANDOM
    own = Origin.PYTHON if _PYTHON.search(node.op) else Origin.EQUAL
    # Datasets and branches are among the functions that it calls.
    inner = [
        _lowest(one, functions)
        for value in node.attr.values()
        for given in (value.func, *value.list.func)
        if given.name in functions
        for one in functions[given.name].node_def
    ]
    return min([own, *inner])
