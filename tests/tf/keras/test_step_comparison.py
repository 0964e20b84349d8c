"""What must be the same in the batches and the learning rates of a step's workers."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any
from unittest.mock import Mock

import pytest
import tensorflow as tf

from slurm_resolver.tf.exchange import Workers
from slurm_resolver.tf.keras.origins import Origin
from slurm_resolver.tf.keras.sharing import Sharing, share
from slurm_resolver.tf.keras.step_comparison import Comparison

ROWS = {"a": [[1.0], [2.0]], "b": [[2.0], [1.0]]}

# The learning rates and the rows of x and y in two workers, the origins of x and y, and the error.
CASES = """
0.1 0.1         | aa aa | EQUAL EQUAL   |
0.1 0.100000001 | aa aa | EQUAL EQUAL   |
0.1 0.2         | aa aa | EQUAL EQUAL   | in the learning rate: 0.1 in worker 0, 0.2 in worker 1
0.1 0.1         | aa ab | EQUAL EQUAL   | in the digest of y:
0.1 0.1         | aa ba | RANDOM EQUAL  |
0.1 0.1         | aa bb | RANDOM EQUAL  | in the digest of y:
0.1 0.1         | aa ba | PYTHON PYTHON |
0.1 0.1         | aa bb | PYTHON PYTHON | differ in x, y, which Python makes
"""


@pytest.mark.parametrize("case", CASES.strip().splitlines())
def test_what_has_to_be_the_same(case: str) -> None:
    """Each worker has a replica, which adds its row to the table; the epoch has one step."""
    rates, batches, origins, expected = (text.strip() for text in case.split("|"))
    model: Any = SimpleNamespace(optimizer=SimpleNamespace(learning_rate=0.0))
    workers: Any = SimpleNamespace(names=("worker 0", "worker 1"))
    workers.refuse_loss = Mock()
    workers.holders = lambda values: Workers.holders(workers, values)
    strategy: Any = SimpleNamespace(comparisons=set(), sharing=Sharing(0, 1, 2), workers=workers)
    comparison = Comparison(strategy, model)
    table = []
    for replica, names in enumerate(batches.split()):
        model.optimizer.learning_rate = float(rates.split()[replica])
        batch = tuple(tf.constant(ROWS[name]) for name in names)
        shared = share(batch, [Origin[name] for name in origins.split()])
        table.append(comparison.row(replica, shared))
    message = ""
    try:
        comparison.check(tf.add_n(table))
        comparison.end()
    except Exception as error:  # of TensorFlow, which passes it on
        message = str(error)
    assert expected in message
    assert bool(expected) == bool(message)
    # NCCL ends a sum without a lost worker with any numbers: no other one may be blamed for them.
    assert workers.refuse_loss.called >= bool(expected)
