"""Sums over replicas: in buckets, and of small tensors by a gather."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import tensorflow as tf
from pytest_mock import MockerFixture
from told_by_workers import told

from slurm_resolver.tf.keras.sums import add_up

Sent = list[dict[int, Any]]


@pytest.fixture
def sent(mocker: MockerFixture) -> Sent:
    """What each collective sends, by its place; the other replica sends the same."""
    buckets: Sent = []

    def doubled(_: Any, values: dict[int, Any]) -> dict[int, Any]:
        buckets.append(values)
        return {place: value + value for place, value in values.items()}

    context = mocker.patch.object(tf.distribute, "get_replica_context")
    context.return_value.all_reduce = doubled
    return buckets


# A type, and the one in which it is sent.
TYPES = """
float32  float32
int64    int64
int32    int64
uint8    int64
uint32   int64
bfloat16 float32
"""


@pytest.mark.parametrize("case", TYPES.strip().splitlines())
def test_types_that_gpus_do_not_add_are_sent_as_larger_ones(case: str, sent: Sent) -> None:
    given, larger = case.split()
    totals = add_up([tf.constant([1, 2], given), tf.constant(3, given)])
    assert [value.dtype for value in sent[0].values()] == [larger, larger]
    assert [total.dtype for total in totals] == [given, given]
    assert [total.numpy().tolist() for total in totals] == [[2, 4], 6]


@pytest.mark.parametrize("sizes", ["3 3 3", "10 | 3 3", "3 9 | 3 1", "0 10 | 10"])
def test_a_full_bucket_is_sent_before_the_next(sizes: str, sent: Sent) -> None:
    """Here a bucket has ten numbers, of four bytes each."""
    values = [tf.zeros([int(size)]) for size in sizes.replace("|", "").split()]
    add_up(values, bytes_per_bucket=40)
    buckets = [" ".join(str(len(value)) for value in bucket.values()) for bucket in sent]
    assert " | ".join(buckets) == sizes


# Numbers of which every order of adding has another sum.
SUMS = """
import tensorflow as tf, slurm_resolver as sr
strategy = sr.MultiWorkerMirroredStrategy()
own = [1e8, 1.0, -1e8][strategy.cluster_resolver.task_id]

@tf.function
def summed(count, dtype):
    def of_replica():
        values = tf.fill([count], tf.cast(own, dtype))
        return tf.distribute.get_replica_context().all_reduce("sum", values)
    return strategy.run(of_replica)

for count, dtype in ((1, "float32"), (8192, "float32"), (8193, "float32"), (1, "bfloat16")):
    graph = summed.get_concrete_function(count, dtype).graph.as_graph_def()
    bodies = [graph.node, *(function.node_def for function in graph.library.function)]
    names = [node.op for nodes in bodies for node in nodes if node.op.startswith("Collective")]
    print("told", dtype, count, *names, sorted(set(summed(count, dtype).numpy().tolist())))
"""


def test_tensors_of_up_to_32_kib_are_gathered_and_added_in_the_order_of_the_workers(
    tmp_path: Path,
) -> None:
    lines = told(SUMS, tmp_path, workers=3)
    assert [line for line in lines if "CollectiveGatherV2" in line] == [
        *["told float32 1 CollectiveGatherV2 [0.0]"] * 3,
        *["told float32 8192 CollectiveGatherV2 [0.0]"] * 3,
    ]
    by_ring = [line.split(" [")[0] for line in lines if "CollectiveReduceV2" in line]
    assert by_ring == [
        *["told bfloat16 1 CollectiveReduceV2"] * 3,
        *["told float32 8193 CollectiveReduceV2"] * 3,
    ]
