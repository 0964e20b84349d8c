"""A dataset whose rows are divided among the workers before they are made.

Row i of a global batch belongs to replica i mod R. Where a dataset maps elements one by one before
it makes batches, each worker keeps the elements of its own rows *before* these maps, so that it
reads, decodes and augments only them::

    source → shuffle → map(decode) → batch(64) → prefetch                    what a program writes
    source → shuffle → batch(64) → own rows → map(decode) → batch(32) → prefetch   what is read

The batches have the same rows as in one process, because nothing else is moved. A map of whole
batches is kept if its plan shows that it treats each row by itself (`partition`).

A dataset that is not known to give the same rows is *undivided*: every worker makes all rows, and
keeps its own. The user is told why (`UndividedError`). These are, among others, a dataset without a
map before its batches, and a map with a state or a seed.
"""

from __future__ import annotations

import contextlib
import functools
import random
from collections.abc import Collection, Iterator
from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf
from tensorflow.data import Dataset

from slurm_resolver.log import tell_once
from slurm_resolver.tf import private_names
from slurm_resolver.tf.causes import cause_of
from slurm_resolver.tf.keras.called_functions import with_called
from slurm_resolver.tf.keras.origins import Origin, find_origins, serialized_graph
from slurm_resolver.tf.keras.sharing import (
    AT_ONCE,
    NO_SEED,
    Share,
    Sharing,
    Structure,
    count_rows,
    is_one_of,
    share,
    undivided_shares,
    without,
    without_conversion,
)
from slurm_resolver.tf.partition.creation import attributes_of
from slurm_resolver.tf.partition.emission import Plan, Split
from slurm_resolver.tf.partition.step import plan_graph
from slurm_resolver.tf.partition.values import SAME, PlanError, Sizes, Want, names, rows
from slurm_resolver.tf.reporter import reporter

_PASSED = (private_names.PREFETCHED, private_names.OPTIONS_DATASET)  # the elements stay the same
_MAPS = (private_names.MAP_DATASET, private_names.PARALLEL_MAP_DATASET)
_BATCHES = (private_names.BATCH_DATASET, private_names.PARALLEL_BATCH_DATASET)
_COMPARED = 256  # bytes at the end of a string
# What takes a number of batches.
_COUNTED = (
    private_names.TAKE_DATASET,
    private_names.SKIP_DATASET,
    private_names.REPEAT_DATASET,
)
# Operations with a state that do the same whichever rows a worker has.
_HARMLESS = names(
    """
    Assert Case EagerPyFunc If LookupTableFindV2 LookupTableSizeV2 PrintV2 PyFunc
    ReadVariableOp ResourceGather StatefulPartitionedCall VarHandleOp While
    """
)
_PYTHON = names("EagerPyFunc PyFunc PyFuncStateless")
# Operations that tell the number of rows, or may do so in the functions that they call.
_TELLING = names("Case If Shape ShapeN Size StatelessCase StatelessIf StatelessWhile While")


class UndividedError(Exception):
    """Says why every worker produces all rows of a dataset."""


class _About(NamedTuple):
    """What is known of the global batch of an element."""

    digest: tf.Tensor  # see `Share`
    rows: tf.Tensor  # their number, int32
    num_own: tf.Tensor  # the number of those which this worker makes, int64


class WorkerData:
    """What a worker reads of a dataset, over which Keras makes iterators.

    Args:
        whole: the dataset, of global batches.
        goes_on: whether an iterator begins where an earlier one has stopped to read.

    Attributes:
        whole: the dataset, of global batches.
        shares: the dataset of `Share`s that the worker reads.
        size: the number of all rows of a batch if the shares have only this worker's, else None.
    """

    shares: Dataset
    size: int | None

    def __init__(self, whole: Dataset, goes_on: bool) -> None:
        self.whole = whole
        self._goes_on = goes_on

    def __iter__(self) -> Iterator[Share]:
        # What is read ahead does not reach the next reader. All workers must read equally far: as
        # far as one process usually reads.
        return iter(self.shares.prefetch(1 if self._goes_on else tf.data.AUTOTUNE))

    def undivide(self) -> None:
        """Lets the worker read all rows."""
        self.shares = undivided_shares(
            without(self.whole, [private_names.PREFETCHED] if self._goes_on else [])
        )
        self.size = None


def share_out(dataset: Dataset, sharing: Sharing, in_memory: bool) -> WorkerData | None:
    """Returns what a worker reads of a dataset.

    That all workers make all rows is told, unless these are in memory, or nothing is computed.

    None stands for a dataset from which each worker reads its own files or data, or batches of a
    tf.data service.
    """
    graph = serialized_graph(dataset)
    policy = tf.data.experimental.AutoShardPolicy
    of_dataset = dataset.options().experimental_distribute.auto_shard_policy
    if of_dataset not in (policy.AUTO, policy.DATA) or b"DataServiceDataset" in graph:
        return None
    # A dataset that shuffles before it repeats draws an order for each repetition.
    repeats = b"RepeatDataset" in graph and b"ShuffleDataset" in graph
    data = WorkerData(dataset, goes_on=repeats or b"GeneratorDataset" in graph)
    if sharing.replicas > 1:
        try:
            data.shares, data.size = divide(dataset, sharing)
            return data
        except UndividedError as error:
            if not in_memory and _calls_functions(dataset):
                tell_once(
                    f"each worker produces all rows of the data and keeps only its own: {error}. "
                    "Put expensive work into a map directly before batch(n)"
                )
                reporter.whole_data = str(error)
    data.undivide()
    return data


def _calls_functions(dataset: Dataset) -> bool:
    inputs = private_names.INPUTS.of(dataset)()
    return bool(private_names.FUNCTIONS.of(dataset)()) or any(map(_calls_functions, inputs))


def divide(dataset: Dataset, sharing: Sharing) -> tuple[Dataset, int]:
    """Returns a dataset of `Share`s with this worker's rows, and the size of the whole batches.

    Raises:
        UndividedError: if that is not known to be right, or is not worthwhile.
    """
    after, batch = _split_off(dataset, (*_MAPS, *_COUNTED))
    if not is_one_of(batch, _BATCHES):
        raise UndividedError("its batches do not come from batch(n)")
    maps, source = _split_off(_input_of(batch), _MAPS)
    if not maps:
        raise UndividedError("no map directly precedes batch(n)")
    for spec in tf.nest.flatten(source.element_spec):
        if not (isinstance(spec, tf.TensorSpec) and spec.shape.is_fully_defined()):
            raise UndividedError("its elements before the maps have no fixed shape")
    size = int(private_names.BATCH_SIZE.of(batch))
    drops = private_names.DROPS_REMAINDER.of(batch)

    blocks = Dataset.zip((source.batch(size, drop_remainder=drops),))
    divided = blocks.flat_map(functools.partial(_own_rows, sharing, find_origins(source)))
    for mapping in maps:
        divided = _mapped(divided, mapping)
    own = int(tf.math.count_nonzero(_is_own(size, sharing)))
    if not drops and _may_leave_few(source, size, own, sharing):
        divided = divided.group_by_window(
            key_func=_number_of_own,
            reduce_func=_batch,
            window_size_func=tf.identity,
        )
    else:
        divided = divided.batch(own)
    for later in after:
        if is_one_of(later, _MAPS):
            _check_rows(later)
            divided = _mapped(divided, later)
        else:
            divided = type(later)(divided, private_names.COUNT.of(later))
    return divided.map(_as_share, **AT_ONCE).with_options(dataset.options()), size


def _may_leave_few(source: Dataset, size: int, own: int, sharing: Sharing) -> bool:
    """Whether the last batch may have too few rows for all replicas, but more than `own`.

    All workers have all these rows, which `batch(own)` would make several batches.
    """
    elements = int(source.cardinality())
    left = elements % size if elements >= 0 else sharing.replicas - 1
    return elements != tf.data.INFINITE_CARDINALITY and own < left < sharing.replicas


@without_conversion
def _as_share(about: _About, batch: Structure) -> Share:
    """Returns a batch of rows, each with what is known of the global batch, as a share."""
    return Share(about.digest[0], batch, {"rows": tf.zeros([about.rows[0], 0])})


@without_conversion
def _number_of_own(about: _About, row: Structure) -> tf.Tensor:
    return about.num_own


@without_conversion
def _batch(num_own: tf.Tensor, window: Dataset) -> Dataset:
    return window.batch(num_own)


@without_conversion
def _own_rows(sharing: Sharing, origins: list[Origin], block: Structure) -> Dataset:
    """Returns the elements of this worker's rows of a batch, each with what is known of it."""
    count = count_rows(block)
    places = tf.where(_is_own(count, sharing))[:, 0]
    about = _About(
        share(tf.nest.map_structure(_without_folder, block), origins).digest,
        count,
        tf.size(places, tf.int64),
    )
    rows = tf.nest.map_structure(lambda value: tf.gather(value, places), block)
    abouts = Dataset.from_tensors(about).repeat()
    return Dataset.zip((abouts, Dataset.from_tensor_slices(rows)))


def _is_own(count: int | tf.Tensor, sharing: Sharing) -> tf.Tensor:
    """Whether this worker has each of so many rows."""
    number = tf.range(count) - sharing.first_replica
    is_own = number % sharing.replicas < sharing.local_replicas
    return is_own | (count < sharing.replicas)  # too few for all replicas, which have all of them


def _without_folder(value: tf.Tensor) -> tf.Tensor:
    """Returns the ends of strings, which may be the paths of files.

    Each worker may have copied the files into another folder.
    """
    if value.dtype != tf.string:
        return value
    begin = tf.maximum(tf.strings.length(value) - _COMPARED, 0)
    end = tf.strings.substr(value, begin, tf.fill(tf.shape(begin), _COMPARED))
    return tf.strings.regex_replace(end, "(?s).*/", "")


def _split_off(
    dataset: Dataset, kinds: Collection[private_names.Name]
) -> tuple[list[Dataset], Dataset]:
    """Returns the datasets of some kinds at the end of a dataset, and what these are made of."""
    datasets: list[Dataset] = []
    at = without(dataset, _PASSED)
    while is_one_of(at, kinds):
        datasets.insert(0, at)
        at = _input_of(at)
    return datasets, at


def _input_of(dataset: Dataset) -> Dataset:
    """Returns what a dataset is made of, without what does not change its elements."""
    (source,) = private_names.INPUTS.of(dataset)()
    return without(source, _PASSED)


def _mapped(pairs: Dataset, like: Dataset) -> Dataset:
    """Maps the second parts of pairs, as another dataset maps its elements.

    Raises:
        UndividedError: if the result depends on earlier elements; if the map does not do the same
            once more, or not for batches whose number of rows is no constant, as it may be after
            `batch(n, drop_remainder=True)`.
    """
    function = private_names.PYTHON_FUNCTION.of(private_names.MAP_FUNCTION.of(like))

    def mapped(about: _About, element: Structure) -> tuple[_About, Structure]:
        # Each worker draws other random numbers; seeds that remain are the program's.
        tf.compat.v1.get_default_graph().seed = None
        # A named tuple is one argument.
        made = function(*element) if type(element) is tuple else function(element)
        # Python functions that it makes anew, such as `functools.partial`, may be others now.
        calls = map(_calls_of_python, (tf.compat.v1.get_default_graph(), _graph_of_map(like)))
        for call, original in zip(*calls):
            token = original.node_def.attr["token"]
            private_names.SET_ATTRIBUTE.of(call)("token", token)
        return about, tuple(made) if isinstance(made, list) else made

    calls = private_names.PARALLEL_CALLS.of(like, None)  # None if it makes one at a time
    deterministic = None if calls is None else True
    of_python, of_numpy = random.getstate(), np.random.get_state()
    try:
        result = pairs.map(mapped, num_parallel_calls=calls, deterministic=deterministic)
    except Exception as error:
        raise UndividedError(
            f"a map cannot be traced again for a part of the rows: {cause_of(error)}"
        ) from None
    finally:  # one process does not draw for it
        random.setstate(of_python)
        np.random.set_state(of_numpy)
    # The function is traced again. What it takes from Python may have changed.
    is_same = False
    with contextlib.suppress(PlanError):  # a function is not known
        _check_state(_graph_of_map(result))
        is_same = _contents(result, len(pairs.element_spec[0])) == _contents(like)
    if not is_same:
        raise UndividedError(
            "a map is another one now than when the dataset was made (for a variable k of a loop, "
            "write `lambda row, k=k:`), uses the batch size as a constant, or calls Python in a "
            "condition or loop"
        )
    return result


def _contents(dataset: Dataset, added: int = 0) -> list[object]:
    """Returns what a map does: its operations, their inputs and attributes, and what it captures.

    Shapes, seeds and the names of functions are left out: what an operation calls comes after it.
    A result is the input of an Identity.

    Args:
        added: how many arguments come first that are not the map's own; it only returns them.
    """
    function = private_names.MAP_FUNCTION.of(dataset).function
    numbers: dict[object, int] = {}  # of tensors, in the order in which they are made
    found: list[object] = [*map(id, function.captured_inputs)]
    for operation in with_called(function.graph.get_operations()):
        tensors = [
            numbers.setdefault(tensor.ref(), len(numbers) - added)
            for tensor in (*operation.inputs, *operation.outputs)
        ]
        if min(tensors, default=0) < 0:  # of an added argument
            continue
        found += [operation.type, tensors[: len(operation.inputs)]]
        found += [
            (name, value.SerializeToString())
            for name, value in sorted(attributes_of(operation).items())
            if name not in ("seed", "seed2")
            and value.WhichOneof("value") not in ("shape", "func")
            and not (value.list.shape or value.list.func)
        ]
    return found


def _calls_of_python(graph: tf.Graph) -> list[tf.Operation]:
    """Returns the operations that call Python functions, each of which has a token."""
    return [operation for operation in graph.get_operations() if operation.type in _PYTHON]


def _graph_of_map(dataset: Dataset) -> tf.Graph:
    return private_names.MAP_FUNCTION.of(dataset).function.graph


def _check_state(graph: tf.Graph) -> None:
    """Raises UndividedError for an operation whose results depend on earlier elements."""
    global_seed = tf.compat.v1.get_seed(1)[0]
    for operation in with_called(graph.get_operations()):
        kind = operation.type
        if kind in _HARMLESS or not operation.op_def.is_stateful:
            continue
        attributes = operation.node_def.attr
        draws = "seed" in attributes and global_seed == NO_SEED
        if not draws or attributes["seed"].i or attributes["seed2"].i:
            raise UndividedError(
                f"a map depends on earlier elements, or has a seed ({kind}); maps need no seed"
            )


def _check_rows(dataset: Dataset) -> None:
    """Raises UndividedError unless a map of batches treats each row by itself."""
    graph = _graph_of_map(dataset)
    arguments = len(graph.inputs) - len(graph.internal_captures)  # which come first
    values = [rows()] * arguments + [SAME] * len(graph.internal_captures)
    wanted = [SAME if tensor.shape.rank == 0 else rows() for tensor in graph.outputs]
    is_by_row = False
    with contextlib.suppress(PlanError):
        plan = plan_graph(graph, values, wanted)
        is_by_row = all(isinstance(step, Split) and step.reason is None for step in plan.steps)
        # A constant of the map has no rows, though it could be sliced.
        is_by_row = is_by_row and plan.outputs == wanted and not _uses_number_of_rows(plan)
    if not is_by_row:
        raise UndividedError("a map after batch(n) is not known to treat each row by itself")


def _uses_number_of_rows(plan: Plan) -> bool:
    """Whether the function of a plan has other results if it gets a part of the rows as a batch.

    It may reshape its own rows, but compute nothing else of their number.
    """
    dependent: set[int] = set()  # tensors whose values depend on the number of rows
    for step in plan.steps:
        assert isinstance(step, Split)
        node = step.node
        pairs = zip(node.inputs, step.wants)
        depends = any(
            number in dependent and _depends_on_rows(plan, number, want) for number, want in pairs
        )
        if depends and any(result != SAME for result in step.results):
            return True
        if depends or node.operation.type in _TELLING:
            dependent.update(filter(functools.partial(_depends_on_rows, plan), node.outputs))
    return not dependent.isdisjoint(plan.flat.outputs)


def _depends_on_rows(plan: Plan, number: int, want: Want = SAME) -> bool:
    """Whether a tensor may have other numbers for another number of rows.

    One of a vector of sizes may be replaced by that of a replica's own rows.
    """
    numbers: Any = plan.sizes.numbers(number)
    if numbers and isinstance(want, Sizes):
        numbers = np.delete(numbers, want.rows.axis, axis=1)
    return numbers is None or not np.array_equal(*numbers)
