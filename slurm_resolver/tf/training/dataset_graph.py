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
# The first of their two inputs that are seeds.
_SEEDS = {
    "ShuffleDataset": 2,
    "ShuffleDatasetV3": 2,
    "RandomDataset": 0,
    "RandomDatasetV2": 0,
}
SEED = "call keras.utils.set_random_seed(n) first"
_ops = tf.Graph()  # knows TensorFlow's operations
Nodes = dict[str, NodeDef]  # of a graph or a function, by name
Bodies = dict[str, Nodes]  # of functions, by the function's name; "" is the dataset itself


class Findings(NamedTuple):
    """What the graph of a dataset says about a resumed training.

    Attributes:
        again: whether the batches of earlier epochs must be drawn again.
        other: why a resumed training reads other data in any case, and what to write; "" if not.
        content: a checksum of the numbers in memory that the dataset is made from.
    """

    again: bool
    other: str = ""
    content: int = 0


def look_through(dataset: Dataset) -> Findings:
    """Returns the findings of a dataset's graph; without a graph, the batches are drawn again."""
    graph = tf.compat.v1.GraphDef.FromString(serialized_graph(dataset))
    if not graph.node:
        return Findings(again=True)
    bodies = {"": {node.name: node for node in graph.node}}
    for function in graph.library.function:
        bodies[function.signature.name] = {node.name: node for node in function.node_def}
    nodes = [node for body in bodies.values() for node in body.values()]
    last = graph.node[-1]
    while last.op in _AT_ONCE:
        last = bodies[""][last.input[0].split(":")[0]]
    # A shuffle in a function is made anew with each call.
    late = any(node.op in _SHUFFLES and node.name != last.name for node in graph.node)
    return Findings(
        again=late or any(map(_changes, nodes)),
        other=_find_other(dataset, bodies, nodes),
        content=_checksum(graph.node),
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


def is_random(node: NodeDef) -> bool:
    """Whether a node is a random operation with a state, whose position cannot be saved."""
    return "seed" in node.attr


def _changes(node: NodeDef) -> bool:
    """Whether a node leaves something behind for the next iterator, besides a shuffle's order."""
    if node.op in _ALIKE | _SHUFFLES or is_random(node):
        return False
    try:  # whether results may differ from call to call
        return bool(_ops.op_def_for_type(node.op).is_stateful)
    except (RuntimeError, ValueError, tf.errors.NotFoundError):  # the name of a function
        return False


def _checksum(nodes: Iterable[NodeDef]) -> int:
    checksum = 0
    # A variable that a function of the data captures has the value that it has now.
    values = {node.input[1] for node in nodes if node.op == "AssignVariableOp"}
    for node in nodes:
        tensor = node.attr["value"].tensor
        # Scalars, such as the size of a batch, and the names of files may differ at each start.
        is_content = tensor.tensor_shape.dim and tensor.dtype != tf.string.as_datatype_enum
        if is_content and node.name not in values:
            checksum = zlib.crc32(tensor.SerializeToString(), checksum)
    return checksum


def _find_other(dataset: Dataset, bodies: Bodies, nodes: list[NodeDef]) -> str:
    """Returns why every run reads other data, and what to write; "" if none is known."""
    for body in bodies.values():
        for node in body.values():
            seeds = _seeds_of(node, body)
            if seeds and not any(seeds):
                return f"{node.op} in the data has no seed: {SEED}, and pass seed=n to it"
    for node in _called([node for node in nodes if node.op.startswith("Parallel")], bodies):
        if is_random(node) or node.op.startswith("Rng"):
            return (
                f"a map with num_parallel_calls calls {node.op}, from which several threads draw: "
                "leave out num_parallel_calls, or use tf.random.stateless_uniform and the like"
            )
    if dataset.options().deterministic is False or any(
        node.attr["deterministic"].s == b"false" for node in nodes
    ):
        return "deterministic=False lets elements overtake each other: leave it out"
    return ""


def _seeds_of(node: NodeDef, body: Nodes) -> list[int]:
    """Returns the seeds of a random operation or dataset: attributes, or constants of its body."""
    if is_random(node):
        return [node.attr["seed"].i, node.attr["seed2"].i]
    first = _SEEDS.get(node.op, len(node.input))
    sources = [body.get(name.split(":")[0], node) for name in node.input[first : first + 2]]
    # One that a function computes is a seed.
    return [
        source.op != "Const" or int(tf.make_ndarray(source.attr["value"].tensor))
        for source in sources
    ]


def _called(callers: list[NodeDef], bodies: Bodies) -> list[NodeDef]:
    """Returns some nodes, and those of the functions that they call, and that these call."""
    left = dict(bodies)
    for node in callers:
        for attr in node.attr.values():
            for function in (attr.func, *attr.list.func):
                callers += left.pop(function.name, {}).values() if function.name else []
    return callers
