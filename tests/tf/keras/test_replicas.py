"""What the replicas of a step exchange."""

from __future__ import annotations

from typing import Any

import pytest
from pytest_mock import MockerFixture


@pytest.mark.parametrize(
    ("given", "sent"),
    [
        ("float32", "float32"),
        ("int64", "int64"),
        ("int32", "int64"),
        ("uint8", "int64"),
        ("uint32", "int64"),
        ("bfloat16", "float32"),
    ],
)
def test_types_that_gpus_do_not_add_are_sent_as_larger_ones(
    given: str, sent: str, mocker: MockerFixture
) -> None:
    import tensorflow as tf

    from slurm_resolver.tf.keras import replicas

    def doubled(_: Any, values: dict[int, Any]) -> dict[int, Any]:
        assert [value.dtype.name for value in values.values()] == [sent, sent]
        return {place: value + value for place, value in values.items()}

    context = mocker.patch.object(tf.distribute, "get_replica_context")
    context.return_value.all_reduce = doubled
    totals = replicas.add_up(
        [
            tf.constant([1, 2], given),
            tf.constant(3, given),
        ]
    )
    assert [total.dtype.name for total in totals] == [given, given]
    assert [total.numpy().tolist() for total in totals] == [[2, 4], 6]


@pytest.mark.parametrize(
    ("sizes", "buckets"),
    [
        ([3, 3, 3], [[0, 1, 2]]),
        ([10, 3, 3], [[0], [1, 2]]),
        ([3, 9, 3, 1], [[0, 1], [2, 3]]),
        ([0, 10, 10], [[0, 1], [2]]),
    ],
)
def test_a_full_bucket_is_sent_before_the_next(
    sizes: list[int], buckets: list[list[int]], mocker: MockerFixture
) -> None:
    """Here a bucket has ten numbers, of four bytes each."""
    import tensorflow as tf

    from slurm_resolver.tf.keras import replicas

    sent: list[list[int]] = []

    def noted(_: Any, values: dict[int, Any]) -> dict[int, Any]:
        sent.append(list(values))
        return values

    context = mocker.patch.object(tf.distribute, "get_replica_context")
    context.return_value.all_reduce = noted
    replicas.add_up([tf.zeros([size]) for size in sizes], bytes_per_bucket=40)
    assert sent == buckets
