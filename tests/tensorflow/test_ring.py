"""The order of TensorFlow's ring, as TensorFlow really goes."""

from __future__ import annotations

import os
import re
import subprocess
import sys

import pytest
from folders import HELPERS

from slurm_resolver.cluster.ring_order import index_order

pytestmark = pytest.mark.tensorflow


def test_tensorflow_visits_the_tasks_in_the_order_of_their_names() -> None:
    """A chief and eleven workers of two devices each, all in one process, and TensorFlow's log."""
    done = subprocess.run(
        [sys.executable, str(HELPERS / "tensorflow_ring.py"), "11"],
        env={**os.environ, "TF_CPP_VMODULE": "ring_alg=2", "TF_CPP_MIN_LOG_LEVEL": "0"},
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    orders = re.findall(r"Subdiv 0 device order:((?:\s+/job:\S+)+)", done.stderr)
    assert orders, done.stderr[-2000:]
    tasks = ["chief/replica:0/task:0"]
    tasks += [f"worker/replica:0/task:{index}" for index in index_order(11)]
    expected = [f"/job:{task}/device:CPU:{number}" for task in tasks for number in range(2)]
    assert all(order.split() == expected for order in orders)
