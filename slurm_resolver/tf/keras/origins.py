"""Finds out from a dataset's functions which parts of its elements are the same in all workers.

Every worker reads a dataset for itself. The same operations give the same elements, except for
random operations, such as those that augment images, and for Python functions, whose results are
unknown.
"""

from __future__ import annotations

import enum
import re
from collections.abc import Iterable

import tensorflow as tf
from tensorflow.data import Dataset

from slurm_resolver.tf import private_names
from slurm_resolver.tf.keras.called_functions import with_called
from slurm_resolver.tf.partition.values import PlanError

_RANDOM = re.compile(
    "Random(Uniform|StandardNormal|Gamma|Poisson|Shuffle)|TruncatedNormal|Multinomial|"
    "SampleDistorted|Stateless(Random|Sample|Truncated|Parameterized)|RandomDataset|Rng"
)
_PYTHON = re.compile("PyFunc|GeneratorDataset|VariantDataset")


class Origin(enum.IntEnum):
    """Where a tensor of a batch comes from; of two, the lower one decides."""

    RANDOM = 0  # from a random operation: it may differ from worker to worker
    PYTHON = 1  # from a function of Python, which may be random, or from an unknown one
    EQUAL = 2  # from operations that compute the same in every worker


def find_origins(dataset: Dataset) -> list[Origin]:
    """Returns the origin of each tensor of a dataset's elements, in the order of `tf.nest`."""
    origins = [
        origin for source in private_names.INPUTS.of(dataset)() for origin in find_origins(source)
    ]
    graphs = [each.function.graph for each in private_names.FUNCTIONS.of(dataset)()]
    count = len(tf.nest.flatten(dataset.element_spec))
    if isinstance(
        dataset, (private_names.MAP_DATASET.get(), private_names.PARALLEL_MAP_DATASET.get())
    ):
        return _of_all(_origins_of_results(graphs[0], origins), count)
    of_functions = [_lowest(graph.get_operations()) for graph in graphs]
    lowest = min([_origin_of([type(dataset).__name__]), *of_functions])
    # Batches, shuffles and the like keep each tensor; ZipDataset joins the tensors of several.
    return [min(lowest, origin) for origin in _of_all(origins, count)]


def serialized_graph(dataset: Dataset) -> bytes:
    """Returns the graph of a dataset as a GraphDef, or b"" if it cannot be obtained."""
    try:
        ignore = tf.data.experimental.ExternalStatePolicy.IGNORE
        return bytes(private_names.GRAPH.of(dataset)(external_state_policy=ignore).numpy())
    except (tf.errors.OpError, ValueError):
        return b""


def _of_all(origins: list[Origin], count: int) -> list[Origin]:
    """Returns the lowest of some origins for each of `count` tensors, if it has another number."""
    return origins if len(origins) == count else [min(origins, default=Origin.EQUAL)] * count


def _origins_of_results(graph: tf.Graph, of_arguments: list[Origin]) -> list[Origin]:
    """Returns the origins of a function's results, given those of its arguments."""
    arguments = graph.inputs[: len(graph.inputs) - len(graph.internal_captures)]
    origins = _of_all(of_arguments, len(arguments))
    known = {tensor.ref(): origin for tensor, origin in zip(arguments, origins)}

    def origin_of(tensor: tf.Tensor) -> Origin:
        reference = tensor.ref()
        if reference not in known:
            known[reference] = min([_lowest([tensor.op]), *map(origin_of, tensor.op.inputs)])
        return known[reference]

    return [origin_of(tensor) for tensor in graph.outputs]


def _lowest(operations: Iterable[tf.Operation]) -> Origin:
    """Returns the lowest origin of operations, and of those in the functions that they call."""
    try:
        return _origin_of([operation.type for operation in with_called(operations)])
    except PlanError:  # a function is not known
        return Origin.PYTHON


def _origin_of(kinds: Iterable[str]) -> Origin:
    text = " ".join(kinds)
    if _RANDOM.search(text):
        return Origin.RANDOM
    return Origin.PYTHON if _PYTHON.search(text) else Origin.EQUAL
