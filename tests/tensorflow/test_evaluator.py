"""An evaluator on the first rank: the workers meet, though its program never waits for them."""

from __future__ import annotations

import subprocess
import sys

import pytest

pytestmark = pytest.mark.tensorflow

PROGRAM = """
from slurm_resolver import SlurmClusterResolver
from slurm_resolver.preflight.ready import wait_until_ready
resolver = SlurmClusterResolver({"evaluator": 1, "worker": -1})
if resolver.task_type == "worker":
    wait_until_ready(resolver.cluster, 60, ["worker"])  # as their strategy does
print(resolver.task_type, resolver.task_id)
"""


def test_workers_meet_where_the_evaluator_runs() -> None:
    launcher = [sys.executable, "-m", "slurm_resolver", "run", "-n", "3", "--no-label", "--"]
    done = subprocess.run(
        [*launcher, sys.executable, "-c", PROGRAM], capture_output=True, text=True, timeout=200
    )
    assert done.returncode == 0, done.stderr
    assert sorted(done.stdout.splitlines()) == ["evaluator 0", "worker 0", "worker 1"]
