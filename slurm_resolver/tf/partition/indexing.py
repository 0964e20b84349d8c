"""Rules for operations that take or change the entries at given places.

The places are computed by row, are the same for all rows, or name the row itself. That is so where
their first number is `tf.range(N)`, as in `tf.gather_nd(p, tf.stack([tf.range(N), labels], 1))`:
then a replica counts its own rows.

In the equations, the axes of the places are capital letters, and those of an entry small ones.
"""

from __future__ import annotations

import numpy as np
import tensorflow as tf

from slurm_resolver.tf.partition.creation import create
from slurm_resolver.tf.partition.emission import Emission, Split
from slurm_resolver.tf.partition.operation import RESULT, Operation
from slurm_resolver.tf.partition.rules import by_equation
from slurm_resolver.tf.partition.sizes import is_count
from slurm_resolver.tf.partition.values import COUNTS, SUM, NotByPartError, Tensors, rows


def _is_each_row(op: Operation, number: int) -> bool:
    """Whether a tensor is the numbers of all rows, in their order: 0, 1, …, N - 1."""
    sizes = op.sizes
    kind, inputs = sizes.flat.made(number)
    if kind in ("Cast", "Identity", "Reshape"):
        # Other types hold fewer numbers, such as those of a bool.
        is_wide = sizes.flat.tensors[number].dtype in (tf.int32, tf.int64)
        return is_wide and _is_each_row(op, inputs[0])
    if kind == "SelectV2":
        # `tf.vectorized_map` selects them if N > 1, and else the number of a single row.
        test, several, single = inputs
        kind, compared = sizes.flat.made(test)
        limits = [sizes.numbers(one) or () for one in compared]
        is_test = kind == "Greater" and np.array_equal(limits, (COUNTS, (1, 1)))
        is_first = not any(map(np.any, sizes.numbers(single) or (True,)))
        return is_test and is_first and _is_each_row(op, several)
    pairs = zip(sizes.numbers(number) or (), COUNTS)
    found = [np.array_equal(np.ravel(one), np.arange(count)) for one, count in pairs]
    return found == [True, True]


def _copies(op: Operation, axis: int) -> Split | None:
    """Returns how rows are copied; None if the second input is not the numbers of all rows.

    Args:
        axis: of the first input; rows along it are taken one after another.
    """
    value = op.values[0]
    if value != rows(axis) or op.rank(1) != 1 or not _is_each_row(op, op.node.inputs[1]):
        return None
    return op.split(value, value, make=lambda emission, inputs: inputs[:1])


def gather(op: Operation) -> Split:
    """GatherV2: entries of a table by row, or the same entries of each row.

    For example, the equation of `tf.gather(table, labels)` is "_b,A->Ab".
    """
    (axis,) = op.axes(2)
    together = op.attribute("batch_dims")
    found = None if together else _copies(op, axis)
    if found:
        return found
    if together < 0:
        together += op.rank(1)
    table = op.letters(0, [axis])
    places = op.letters(1).upper()[together:]
    return by_equation(
        op,
        f"{table},{table[:together]}{places}->{table.replace('_', places)}",
    )


def gather_of_variable(op: Operation) -> Split:
    """ResourceGather and LookupTableFindV2: entries of a variable or a table, by row."""
    if op.attribute("batch_dims"):
        raise NotByPartError("batch_dims")
    places = op.letters(1)
    return by_equation(op, f",{places}->{places}")


def segment_sum(op: Operation) -> Split:
    """UnsortedSegmentSum: entries are added in segments.

    It is also the gradient of a gather; that of all rows in their order copies them.
    """
    found = _copies(op, 0)
    if found and is_count(op.size(0, RESULT), rows()):
        return found
    data = op.letters()
    places = op.letters(1)
    return by_equation(op, f"{data},{places}->_{data[len(places) :]}", adds=True)


def at_places(op: Operation, indices: int, equation: str, *, adds: bool = False) -> Split:
    """GatherNd, ScatterNd and TensorScatter…, whose places have several numbers each.

    Args:
        indices: the place of the input with the places.
        equation: with the terms T of the table, P of the places, and E of the entries.
        adds: whether entries are added at their places.
    """
    depth = op.tensor(indices).shape[-1]
    if depth is None:
        raise NotByPartError("an unknown size")
    # Places that begin with the number of their row are stacked of columns, of which the first one
    # is `tf.range(N)`.
    kind, columns = op.sizes.flat.made(op.node.inputs[indices])
    is_own = (
        kind in ("ConcatV2", "Pack")
        and op.rank(indices) == 2
        and _is_each_row(op, columns[0])
        and is_count(op.size(0, indices), rows())
    )
    places = op.letters(indices)[:-1].upper()
    entry = op.letters(RESULT)[len(places) if op.kind == "GatherNd" else depth :]
    table = "_" * depth + entry
    if is_own:
        table = places + table[1:]
    terms = {"T": table, "P": f"{places}_", "E": places + entry}
    found = by_equation(op, equation.translate(str.maketrans(terms)), adds=adds)
    if SUM in found.results and equation.startswith("T"):
        return found._replace(wants=[SUM, *found.wants[1:]])
    if not is_own or rows() not in found.results:
        return found

    def make(emission: Emission, inputs: Tensors) -> Tensors:
        tensors = list(inputs)
        given = tensors[indices]
        own = tf.cast(tf.range(emission.rows.own), given.dtype)
        tensors[indices] = tf.concat([own[:, tf.newaxis], given[:, 1:]], axis=1)
        return create(op.traced, tensors)

    return found._replace(make=make)
