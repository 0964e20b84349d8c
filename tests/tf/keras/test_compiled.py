"""Graphs of steps: which of them a batch has."""

from __future__ import annotations

from typing import Any

import pytest
import tensorflow as tf

from slurm_resolver.tf import private_names
from slurm_resolver.tf.keras.compiled import CompiledStep, compiled
from slurm_resolver.tf.keras.sharing import type_of

pytestmark = pytest.mark.tensorflow

ROWS = tf.zeros([4, 2])
LABELS = tf.zeros([4], tf.int32)
# Each of them needs a graph of its own, though several consist of the same tensors.
BATCHES = [
    (ROWS, LABELS),
    {"x": ROWS, "y": LABELS},
    ({"x": ROWS}, LABELS),
    (ROWS, (LABELS,)),
    (LABELS, ROWS),
    (ROWS, LABELS, None),
    (ROWS, None, LABELS),
    (ROWS[:3], LABELS[:3]),
    (tf.cast(ROWS, tf.float64), LABELS),
    (tf.RaggedTensor.from_row_splits(ROWS, [0, 4]), LABELS),
    (tf.RaggedTensor.from_row_splits(ROWS, [0, 1, 4]), LABELS),
    (tf.sparse.from_dense(ROWS + 1), LABELS),
]


def described(batch: Any) -> tf.Tensor:
    """Returns what a graph is made for."""
    return tf.constant(repr(tf.nest.map_structure(type_of, batch)))


@pytest.mark.parametrize("writes", [False, True])
@pytest.mark.parametrize("has_private_method", [False, True])
def test_batch_has_the_graph_that_tensorflow_finds(
    writes: bool, has_private_method: bool, mocker: Any
) -> None:
    """It is that of its structure and types, or of any number of rows."""
    if not has_private_method:
        mocker.patch.object(private_names.CALL_FLAT, "of", return_value=None)
    found = compiled(described)
    step = CompiledStep(found.get_concrete_function)
    function = compiled(described)
    if writes:
        spec = tf.TensorSpec([None, 2]), tf.TensorSpec([None], tf.int32)
        found.get_concrete_function(spec)
        function.get_concrete_function(spec)
    for batch in [*BATCHES, *BATCHES, *BATCHES[::-1]]:
        assert step(batch) == function(batch)


def test_graph_is_looked_for_once(mocker: Any) -> None:
    find = mocker.Mock(side_effect=compiled(lambda batch: batch[0] + 1).get_concrete_function)
    step = CompiledStep(find)
    for number in range(3):
        assert step((tf.fill([2], number), LABELS))[0] == number + 1
    assert find.call_count == 1
