"""SLURM_RESOLVER_VERIFY: which steps are compared with one process, and what is found."""

from __future__ import annotations

import re
from types import SimpleNamespace
from typing import Any

import pytest
import tensorflow as tf
from pytest_mock import MockerFixture

from slurm_resolver import log
from slurm_resolver.coordination.progress import COMPILING
from slurm_resolver.errors import FitError
from slurm_resolver.tf.keras.sharing import share
from slurm_resolver.tf.keras.traced_step import PlannedStep
from slurm_resolver.tf.keras.verification import Verification
from slurm_resolver.tf.partition.step import plan_whole
from slurm_resolver.tf.reporter import reporter

LOCAL = SimpleNamespace(experimental_local_results=lambda variable: (variable,))
MODEL: Any = SimpleNamespace(name="own", distribute_strategy=LOCAL, weights=[])
BATCH = share(tf.constant([[1.0, 2.0], [3.0, 4.0]]))
TABLE = tf.lookup.experimental.MutableHashTable(tf.int32, tf.int32, -1)


def draw() -> None:
    tf.random.normal([])


def fill_a_table() -> None:
    TABLE.insert([1], [2])


@pytest.mark.parametrize(
    ("by", "unlike", "error"),
    [
        (1.0, {}, ""),
        (1.0000001, {}, ""),
        (1.01, {}, ".*train step of 'own' differs from one process.*in the variable 'weight"),
        (1.001, {}, ".*differs from one process"),
        (1.001, {"gpus": ["TF32"]}, ""),
        (1.06, {"gpus": ["TF32"]}, ".*differs from one process"),
        (1.01, {"also": draw}, ""),  # it is not compared
        (1.01, {"also": fill_a_table}, ""),
    ],
)
def test_a_change_that_differs_by_more_than_rounding_is_an_error(
    by: float, unlike: dict[str, Any], error: str, mocker: MockerFixture
) -> None:
    mocker.patch.object(tf.config, "list_logical_devices", return_value=unlike.get("gpus", []))
    also = unlike.get("also")
    enter = mocker.patch.object(reporter, "enter")
    weight = tf.Variable([1.0, 2.0], name="weight")

    def train(batch: Any) -> list[Any]:
        if also:
            also()
        weight.assign_sub(0.1 * tf.reduce_mean(batch, axis=0))
        return [tf.reduce_sum(batch)]

    traced = tf.function(train).get_concrete_function(tf.TensorSpec([None, 2]))
    planned = PlannedStep(
        function=traced,
        plan=plan_whole(traced),
        reason=None,
        copies={},
        multiples=(),
        takes_any_rows=True,
    )
    found = ""
    try:
        Verification(MODEL, "train", steps=1).compute(
            planned,
            BATCH,
            step=lambda: train(by * BATCH.batch) and [tf.reduce_sum(BATCH.batch)],
        )
    except FitError as raised:
        found = str(raised)
    assert re.match(error or "$", found)
    assert weight.numpy() == pytest.approx([1.0 - 0.2 * by, 2.0 - 0.3 * by])
    told = any("'own' is not compared with one process" in line for line in log.warned)
    assert told == bool(also)
    assert (mocker.call(COMPILING) in enter.call_args_list) == (not also)
