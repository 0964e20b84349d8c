"""What a resumed training must do to read a dataset where it was interrupted, from its graph.

Each epoch makes an iterator. A `shuffle` draws its next order when *its* iterator is made: for some
datasets at once, such as for `shuffle(n).map(f).batch(m)`, and for others when the first batch is
drawn, or later, such as for the second dataset of `concatenate`. A `cache` contains what the first
epoch has read. Python functions, and variables such as those of `tf.random.Generator`, change with
each element. In all cases but the first, the batches of the earlier epochs are drawn again.

TensorFlow's random operations start anew with each iterator, and need nothing. If they have no
seed, or if several threads draw from them, no two runs are alike.
"""

from __future__ import annotations

import itertools
import zlib
from collections.abc import Iterable
from typing import NamedTuple

import tensorflow as tf
from tensorflow.compat.v1 import NodeDef
from tensorflow.data import Dataset

from slurm_resolver.tf import private_names
from slurm_resolver.tf.keras.origins import serialized_graph
from slurm_resolver.tf.partition.values import names

# The iterator over their first input is made as soon as their own. `_Retval` is a graph's result.
_AT_ONCE = names(
    """
    BatchDatasetV2 FilterDataset FlatMapDataset GroupByWindowDataset InterleaveDataset MapDataset
    OptionsDataset PaddedBatchDatasetV2 ParallelBatchDataset ParallelMapDatasetV2 PrefetchDataset
    ScanDataset ShardDataset SkipDataset TakeDataset WindowDataset ZipDataset _Retval
    """
)
# Stateful operations: each iterator yields the same if the iterators over its inputs do.
_ALIKE = names(
    """
    AnonymousHashTable Assert CacheDataset CacheDatasetV2 Case DummySeedGenerator
    FixedLengthRecordDataset FixedLengthRecordDatasetV2 HashTableV2 If LookupTableFindV2
    LookupTableSizeV2 PrintV2 RandomDataset RangeDataset ReadVariableOp ResourceGather
    SparseTensorSliceDataset StatefulPartitionedCall TensorDataset TensorSliceDataset
    TextLineDataset TFRecordDataset TFRecordDatasetV2 VarHandleOp While _Retval
    """
)
_SHUFFLES = names("ShuffleDataset ShuffleDatasetV2 ShuffleDatasetV3")
_SEEDS = ("seed", "seed2")
SEED = "call keras.utils.set_random_seed(n)"
_ops = tf.Graph()  # knows TensorFlow's operations
Nodes = dict[str, NodeDef]  # of a graph, by name
Bodies = dict[str, Nodes]  # of functions, by the function's name


class Findings(NamedTuple):
    """What the graph of a dataset says about a resumed training.

    Attributes:
        again: whether the batches of earlier epochs must be drawn again.
        other: why a resumed training reads other data in any case, and what to write; "" if not.
        content: a checksum of the numbers in memory that the dataset is made from.
        shuffles: whether an epoch may read the data in another order than the one before.
    """

    again: bool
    other: str = ""
    content: int = 0
    shuffles: bool = True


def look_through(dataset: Dataset) -> Findings:
    """Returns the findings of a dataset's graph; without a graph, the batches are drawn again."""
    graph = tf.compat.v1.GraphDef.FromString(serialized_graph(dataset))
    if not graph.node:
        return Findings(again=True)
    nodes = _by_name(graph.node)
    functions = {body.signature.name: _by_name(body.node_def) for body in graph.library.function}
    called = itertools.chain(*[body.values() for body in functions.values()])
    again = any(map(_changes, called)) or _draws_late(nodes, graph.node[-1])
    return Findings(
        again,
        _find_other(dataset, nodes, functions),
        _checksum(graph.node),
        shuffles=again or any(node.op in _SHUFFLES for node in graph.node),
    )


def captures_of(dataset: Dataset) -> set[int]:
    """Returns the ids of what the functions of a dataset capture, such as variables' handles.

    Those of a dataset that a strategy of TensorFlow distributes are not known.
    """
    if not isinstance(dataset, Dataset):
        return set()
    functions = private_names.FUNCTIONS.of(dataset)()
    captures = {id(captured) for one in functions for captured in one.function.captured_inputs}
    return captures.union(*map(captures_of, private_names.INPUTS.of(dataset)()))


def _by_name(nodes: Iterable[NodeDef]) -> Nodes:
    return {node.name: node for node in nodes}


def is_random(node: NodeDef) -> bool:
    """Whether a node is a stateful random operation, whose position cannot be saved."""
    return "seed" in node.attr and is_stateful(node)


def is_stateful(node: NodeDef) -> bool:
    """Whether TensorFlow says that results of a node's operation may differ from call to call."""
    try:
        return bool(_ops.op_def_for_type(node.op).is_stateful)
    except (RuntimeError, ValueError, tf.errors.NotFoundError):  # the name of a function
        return False


def _changes(node: NodeDef) -> bool:
    """Whether a node in a function leaves something behind for the next iterator."""
    known = node.op in _ALIKE | _SHUFFLES  # a shuffle in a function is made anew with each call
    return is_stateful(node) and not known and not is_random(node)


def _draws_late(nodes: Nodes, node: NodeDef) -> bool:
    """Whether making iterators over the last node, and so over its inputs, is not enough."""
    at_once = {node.name}
    while node.op in _AT_ONCE:
        node = nodes[node.input[0].split(":")[0]]
        at_once.add(node.name)
    return any(
        is_stateful(other) and other.op not in _ALIKE
        for other in nodes.values()
        if other.name not in at_once or other.op not in _SHUFFLES
    )


def _checksum(nodes: Iterable[NodeDef]) -> int:
    checksum = 0
    nodes = list(nodes)
    # A variable that a function of the data captures has the value that it has now.
    values = {node.input[1] for node in nodes if node.op == "AssignVariableOp"}
    for node in nodes:
        if node.name in values:
            continue
        tensor = node.attr["value"].tensor
        # Scalars, such as the size of a batch, and the names of files may differ at each start.
        if tensor.tensor_shape.dim and tensor.dtype != tf.string.as_datatype_enum:
            checksum = zlib.crc32(tensor.SerializeToString(deterministic=True), checksum)
    return checksum


def _find_other(dataset: Dataset, nodes: Nodes, functions: Bodies) -> str:
    """Returns why every run reads other data, and what to write; "" if none is known."""
    for body in (nodes, *functions.values()):
        for node in body.values():
            if _lacks_seed(body, node):
                return f"{node.op} has no seed: {SEED} first"
            if is_random(node) and not any(node.attr[seed].i for seed in _SEEDS):
                return (
                    f"a function of the data calls {node.op} without a seed: {SEED} first, and "
                    "pass seed=n to it"
                )
            if node.op.startswith("Parallel"):
                for called in _called(functions, node):
                    if is_random(called) or called.op.startswith("Rng"):
                        return (
                            f"a map with num_parallel_calls calls {called.op}, from which several "
                            "threads draw: leave out num_parallel_calls, or use "
                            "tf.random.stateless_uniform and the like"
                        )
    if dataset.options().deterministic is False or any(
        node.attr["deterministic"].s == b"false" for node in nodes.values()
    ):
        return "deterministic=False lets elements overtake each other: leave it out"
    return ""


def _lacks_seed(nodes: Nodes, node: NodeDef) -> bool:
    """Whether a dataset has seeds, and both are zero."""
    if not is_stateful(node):
        return False
    arguments = [argument.name for argument in _ops.op_def_for_type(node.op).input_arg]
    inputs = dict(zip(arguments, node.input))
    seeds = [nodes.get(inputs.get(seed, "").split(":")[0]) for seed in _SEEDS]
    return all(
        seed is not None
        and seed.op == "Const"
        and not tf.make_ndarray(seed.attr["value"].tensor).any()
        for seed in seeds
    )


def _called(functions: Bodies, caller: NodeDef) -> list[NodeDef]:
    """Returns the nodes of the functions that a node calls, and of those that these call."""
    left = dict(functions)
    body = [caller]
    for node in body:
        for attr in node.attr.values():
            for function in (attr.func, *attr.list.func):
                body += left.pop(function.name, {}).values()
    return body[1:]
