"""An evaluator on the first rank: the workers meet, though its program never waits for them."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from folders import ROOT

pytestmark = pytest.mark.tensorflow

PROGRAM = """
import glob, time
from slurm_resolver import SlurmClusterResolver
from slurm_resolver.preflight.ready import wait_until_ready
resolver = SlurmClusterResolver({"evaluator": 1, "worker": -1})
if resolver.task_type == "worker":
    wait_until_ready(resolver.cluster, 60, ["worker"])  # as their strategy does
    open(f"met.{resolver.task_id}", "w").close()
while len(glob.glob("met.*")) < 2:
    time.sleep(0.1)
print(resolver.task_type, resolver.task_id)
"""


def test_workers_meet_where_the_evaluator_runs(tmp_path: Path) -> None:
    launcher = [sys.executable, "-m", "slurm_resolver", "run", "-n", "3", "--no-label", "--"]
    done = subprocess.run(
        [*launcher, sys.executable, "-c", PROGRAM],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=200,
    )
    assert done.returncode == 0, done.stderr
    assert sorted(done.stdout.splitlines()) == ["evaluator 0", "worker 0", "worker 1"]
