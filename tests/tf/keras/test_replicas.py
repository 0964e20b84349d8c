"""What the replicas of a step exchange."""

from __future__ import annotations

from typing import Any

import pytest
import tensorflow as tf
from pytest_mock import MockerFixture

from slurm_resolver.tf.keras.replicas import add_up

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
