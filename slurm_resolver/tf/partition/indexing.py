"""Rules for operations that take or change the entries at given places.

The places are computed by row, are the same for all rows, or name the row itself. That is so where
their first number is `tf.range(N)`, as in `tf.gather_nd(p, tf.stack([tf.range(N), labels], 1))`:
then a replica counts its own rows.

In the equations, the axes of the places are capital letters, and those of an entry small ones.
"""

from __future__ import annotations

import functools

import numpy as np
import tensorflow as tf

from slurm_resolver.tf.partition.emission import Emission, Split
from slurm_resolver.tf.partition.inlining import Node
from slurm_resolver.tf.partition.operation import Operation
from slurm_resolver.tf.partition.rules import by_equation, letters
from slurm_resolver.tf.partition.sizes import is_count
from slurm_resolver.tf.partition.values import COUNTS, SUM, NotByPartError, rows


def _is_each_row(op: Operation, number: int) -> bool:
    """Whether a tensor is the numbers of all rows, in their order: 0, 1, …, N - 1."""
    node = op.sizes.maker(number)
    if node is not None and node.operation.type in ("Cast", "Identity", "Reshape"):
        return _is_each_row(op, node.inputs[0])
    if node is not None and node.operation.type == "SelectV2":
        # `tf.vectorized_map` selects them if N > 1, and else the number of a single row.
        test = op.sizes.maker(node.inputs[0])
        if test is not None and test.operation.type == "Greater":
            numbers = [op.sizes.numbers(one) or () for one in test.inputs]
            if all(
                map(
                    np.array_equal,
                    numbers,
                    (COUNTS, (1, 1)),
                )
            ):
                return _is_each_row(op, node.inputs[1])
    pair = op.sizes.numbers(number)
    return pair is not None and all(
        np.array_equal(np.ravel(one), np.arange(count)) for one, count in zip(pair, COUNTS)
    )


def _begins_with_row(op: Operation, place: int) -> bool:
    """Whether the places that an input names begin with the number of their row."""
    node = op.sizes.maker(op.node.inputs[place])
    if node is None or op.rank(place) != 2:
        return False
    if node.operation.type not in ("ConcatV2", "Pack"):
        return False
    if node.operation.type == "Pack":
        axis = node.operation.get_attr("axis")
    else:
        axis = tf.get_static_value(node.operation.inputs[-1])
    return axis in (1, -1) and _is_each_row(op, node.inputs[0])


def _unchanged(op: Operation, axis: int) -> Split | None:
    """Returns how rows are copied; None if the second input is not the numbers of all rows."""
    if op.values[0] != rows(axis) or op.rank(1) != 1:
        return None
    if not _is_each_row(op, op.node.inputs[1]):
        return None
    return op.split(
        rows(axis),
        rows(axis),
        make=lambda emission, node, inputs: [tf.identity(inputs[0])],
    )


def gather(op: Operation) -> Split:
    """GatherV2: entries of a table by row, or the same entries of each row."""
    (axis,) = op.axes(2, op.rank())
    together = op.attribute("batch_dims")
    found = None if together else _unchanged(op, axis)
    if found:
        return found
    if together < 0:
        together += op.rank(1)
    table = letters(op.rank(), [axis])
    places = letters(op.rank(1)).upper()[together:]
    result = table.replace("_", places)
    return by_equation(op, f"{table},{table[:together]}{places}->{result}")


def gather_of_variable(op: Operation) -> Split:
    """ResourceGather and LookupTableFindV2: entries of a variable or a table, by row."""
    if op.attribute("batch_dims"):
        raise NotByPartError("batch_dims")
    places = letters(op.rank(1))
    return by_equation(op, f",{places}->{places}")


def segment_sum(op: Operation) -> Split:
    """UnsortedSegmentSum: entries are added in segments."""
    found = _unchanged(op, 0)
    if found and is_count(
        op.result_size(0),
        1,
        1,
    ):
        return found
    lead = op.rank(1)
    data = letters(op.rank())
    return by_equation(
        op,
        f"{data},{data[:lead]}->_{data[lead:]}",
        adds=True,
    )


def at_places(op: Operation, indices: int, equation: str, *, adds: bool = False) -> Split:
    """GatherNd, ScatterNd and TensorScatter…, whose places have several numbers each.

    Args:
        indices: the place of the input with the places.
        equation: with the terms T of the table, P of the places, and E of the entries.
        adds: whether entries are added at their places.
    """
    depth = op.node.operation.inputs[indices].shape[-1]
    if depth is None:
        raise NotByPartError("an unknown size")
    places = letters(op.rank(indices) - 1).upper()
    before = len(places) if op.kind == "GatherNd" else depth
    entry = letters(op.result_rank() - before)
    table = "_" * depth + entry
    is_own = _begins_with_row(op, indices)
    if is_own:
        table = places + table[1:]
    terms = {"T": table, "P": f"{places}_", "E": places + entry}
    written = "".join(terms.get(one, one) for one in equation)
    found = by_equation(
        op,
        written,
        adds=adds,
    )
    if SUM in found.results and equation.startswith("T"):
        return found._replace(wants=(SUM, *found.wants[1:]))
    if is_own and rows() in found.results:
        return found._replace(make=functools.partial(_of_own_rows, indices))
    return found


def _of_own_rows(
    indices: int, emission: Emission, node: Node, inputs: list[tf.Tensor]
) -> list[tf.Tensor]:
    """Writes an operation whose places begin with the number of a row."""
    given = inputs[indices]
    own = tf.range(emission.rows.own, dtype=tf.int32)[:, tf.newaxis]
    inputs[indices] = tf.concat(
        [tf.cast(own, given.dtype), given[:, 1:]],
        axis=1,
    )
    return emission.create(node, inputs)
