"""Rules for operations that take or change the entries at given places.

The places are computed by row, are the same for all rows, or name the row itself. That is so where
their first number is `tf.range(N)`, as in `tf.gather_nd(p, tf.stack([tf.range(N), labels], 1))`:
then a replica counts its own rows.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import tensorflow as tf

from slurm_resolver.tf.partition.operation import Operation, count_at, size_at
from slurm_resolver.tf.partition.sizes import is_count
from slurm_resolver.tf.partition.values import (
    COUNTS,
    SAME,
    SUM,
    NotByPartError,
    Split,
    Want,
    rows,
)


def _is_each_row(op: Operation, number: int) -> bool:
    """Whether a tensor is the numbers of all rows, in their order: 0, 1, …, N - 1."""
    node = op.sizes.maker(number)
    while node is not None and node.operation.type in ("Cast", "Identity", "Reshape"):
        number = node.inputs[0]
        node = op.sizes.maker(number)
    if node is not None and node.operation.type == "SelectV2" and _has_several(op, node.inputs[0]):
        number = node.inputs[1]
    pair = op.sizes.numbers(number)
    if pair is None:
        return False
    return all(np.array_equal(np.ravel(one), np.arange(count)) for one, count in zip(pair, COUNTS))


def _has_several(op: Operation, number: int) -> bool:
    """Whether a tensor is N > 1: `tf.vectorized_map` takes the number of a single row from it."""
    node = op.sizes.maker(number)
    if node is None or node.operation.type != "Greater":
        return False
    pairs = [op.sizes.numbers(one) for one in node.inputs]
    return pairs[0] is not None and pairs == [COUNTS, (1, 1)]


def _begins_with_row(op: Operation, place: int) -> bool:
    """Whether the places that an input names begin with the number of their row."""
    node = op.sizes.maker(op.node.inputs[place])
    if node is None or op.rank(place) != 2:
        return False
    kind = node.operation.type
    if kind == "Pack":
        is_last = node.operation.get_attr("axis") in (1, -1)
    elif kind == "ConcatV2":
        pair = op.sizes.numbers(node.inputs[-1])
        is_last = pair is not None and int(pair[0]) in (1, -1)
    else:
        return False
    return is_last and _is_each_row(op, node.inputs[0])


def gather(op: Operation) -> Split:
    """GatherV2: entries of a table by row, or the same entries of each row."""
    table, indices = op.values[:2]
    (axis,) = op.axes(2, op.rank())
    together = op.attribute("batch_dims", 0) % (op.rank(1) + 1)
    if together:
        value = op.values[op.divided[0]]
        if value.axis >= together:
            raise NotByPartError("rows that are picked")
        return op.split(
            value,
            op.beside(0, value),
            op.beside(1, value),
        )
    if not table.has_rows:
        return op.along(indices.at(indices.axis + axis), 1)
    if table == rows(axis) and op.rank(1) == 1 and _is_each_row(op, op.node.inputs[1]):
        return op.split(
            table,
            table,
            make=_first_input,
        )
    if indices.has_rows or table.axis == axis:
        raise NotByPartError("rows that are picked")
    more = op.rank(1) - 1 if axis < table.axis else 0
    return op.along(table.at(table.axis + more))


def _first_input(emission: Any, node: Any, inputs: list[Any]) -> list[Any]:
    return [tf.identity(inputs[0])]


def gather_of_variable(op: Operation) -> Split:
    """ResourceGather: entries of a variable, by row."""
    if op.attribute("batch_dims"):
        raise NotByPartError("batch_dims")
    return op.along(op.of_rows(1), 1)


def segment_sum(op: Operation) -> Split:
    """UnsortedSegmentSum: entries are added in segments."""
    data, ids = op.values[:2]
    if ids.has_rows:
        return _added(
            op,
            indices=1,
            data=0,
        )
    is_each = op.rank(1) == 1 and _is_each_row(op, op.node.inputs[1])
    if data == rows() and is_each and is_count(count_at(op.result_shape(), 0), 1, 1):
        return op.split(
            data,
            data,
            make=_first_input,
        )
    lead = op.rank(1)
    if data.axis < lead:
        raise NotByPartError("places that are the same for all rows")
    return op.along(data.at(data.axis - lead + 1))


def _added(op: Operation, indices: int, data: int, table: int | None = None) -> Split:
    """Entries are added at places that are computed by row.

    Args:
        table: the place of the tensor to which they are added, if there is one.
    """
    value = op.values[indices]
    if op.divided not in ([indices], sorted((indices, data))):
        raise NotByPartError("rows beside places")
    wants: list[Want] = [SAME] * 3
    wants[indices] = value
    wants[data] = op.beside(data, value)
    if wants[data] == SAME:
        raise NotByPartError("one entry for all rows")
    if table is not None:
        wants[table] = SUM
    return op.split(SUM, *wants)


def at_places(
    op: Operation,
    indices: int,
    table: int | None = None,
    data: int | None = None,
    shape: int | None = None,
) -> Split:
    """GatherNd, ScatterNd and TensorScatter…, whose places have several numbers each.

    Args:
        indices: the place of the input with the places.
        table: of the tensor whose entries are taken or changed.
        data: of the entries that are put there.
        shape: of the shape of the result.
    """
    value = op.values[op.divided[0]]
    depth = op.node.operation.inputs[indices].shape[-1]
    lead = op.rank(indices) - 1
    if depth is None:
        raise NotByPartError("an unknown size")
    wants: list[Want] = [SAME] * len(op.values)
    make = None
    if not op.values[indices].has_rows:
        before = depth if op.divided[0] == table else lead
        of_table = value.at(value.axis - before + depth)
        of_data = value.at(value.axis - before + lead)
        if value.axis < before:
            raise NotByPartError("rows that are picked")
    elif op.values[indices] == rows() and _begins_with_row(op, indices):
        of_table = of_data = rows()
        wants[indices] = rows()
        make = _of_own_rows(indices)
    elif op.values[indices].axis >= lead:
        raise NotByPartError("rows within a place")
    elif op.kind == "GatherNd":
        return op.along(op.of_rows(indices), indices)
    elif op.kind in ("ScatterNd", "TensorScatterAdd", "TensorScatterSub"):
        assert data is not None
        return _added(op, indices, data, table)
    else:
        raise NotByPartError("rows that are picked")
    if table is not None:
        wants[table] = op.beside(table, of_table)
    if data is not None:
        wants[data] = op.beside(data, of_data)
    if shape is not None:
        if not is_count(
            count_at(op.result_shape(), of_table.axis),
            of_table.outer,
            of_table.inner,
        ):
            raise NotByPartError("another size")
        wants[shape] = size_at(of_table)
    return op.split(
        of_data if op.kind == "GatherNd" else of_table,
        *wants,
        make=make,
    )


def _of_own_rows(indices: int) -> Any:
    """Returns what writes an operation whose places begin with the number of a row."""

    def make(emission: Any, node: Any, inputs: list[Any]) -> list[Any]:
        given = inputs[indices]
        own = tf.range(emission.rows.own, dtype=tf.int32)[:, tf.newaxis]
        inputs[indices] = tf.concat([tf.cast(own, given.dtype), given[:, 1:]], axis=1)
        results: list[Any] = emission.create(node, inputs)
        return results

    return make
