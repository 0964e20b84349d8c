"""What a step of `fit` costs on several workers."""

from __future__ import annotations

from typing import Any

import pytest
from folders import quiet_helper
from local_run import captured, in_step
from pytest_mock import MockerFixture


def test_a_step_takes_two_round_trips_between_the_workers() -> None:
    """One adds up the gradients; the other adds up metrics, and compares the workers."""
    done = captured(in_step("--no-label -n2", *quiet_helper("keras_collectives.py")), status=0)
    assert "collectives of a step: 2\n" in done.stdout


@pytest.mark.parametrize(
    ("given", "sent"),
    [
        ("float32", "float32"),
        ("int64", "int64"),
        ("int32", "int64"),
        ("bfloat16", "float32"),
    ],
)
def test_types_that_gpus_do_not_add_are_sent_as_larger_ones(
    given: str, sent: str, mocker: MockerFixture
) -> None:
    import tensorflow as tf

    from slurm_resolver.tf.keras import step

    def doubled(_: Any, values: list[Any]) -> list[Any]:
        assert [value.dtype.name for value in values] == [sent, sent]
        return [value + value for value in values]

    context = mocker.patch.object(tf.distribute, "get_replica_context")
    context.return_value.all_reduce = doubled
    totals = step.all_reduce([tf.constant([1, 2], given), tf.constant(3, given)])
    assert [total.dtype.name for total in totals] == [given, given]
    assert [total.numpy().tolist() for total in totals] == [[2, 4], 6]
