"""A program written as in TensorFlow's multi-worker tutorial runs unchanged with Keras 3."""

from __future__ import annotations

import re
import shlex
import sys

import pytest
from explained import explained
from folders import EXAMPLES, ROOT
from keras_marks import KERAS_3_ON_SLURM
from kinds import Completed
from local_run import COMMAND
from slurm_cluster import SlurmCluster

pytestmark = KERAS_3_ON_SLURM


def run(slurm: SlurmCluster, options: str, status: int | None) -> Completed:
    words = [
        *COMMAND,
        "exec",
        *options.split(),
        "--",
        sys.executable,
        "-W",
        "ignore",
        str(EXAMPLES / "tf_config" / "train.py"),
    ]
    step = "srun --kill-on-bad-exit=1 -w n9,n10 -N2 -n2"
    env = {"TF_USE_LEGACY_KERAS": "0", "PYTHONPATH": str(ROOT)}  # makes scikit-learn visible
    command = f"{step} {shlex.join(words)} --epochs 3"
    return slurm.run(
        command,
        env=env,
        timeout=240,
        status=status,
    )


def test_with_this_strategy_in_its_place(real_slurm: SlurmCluster) -> None:
    done = run(real_slurm, "--replace-strategy", status=0)
    found = re.findall(r"worker ([01]) of 2: test accuracy [\d.]+, weights (\w+)", done.stdout)
    assert {worker for worker, _ in found} == {"0", "1"}
    assert len({weights for _, weights in found}) == 1


@pytest.mark.nightly
def test_without_it_the_log_is_explained(real_slurm: SlurmCluster) -> None:
    done = run(real_slurm, "", status=None)
    assert done.returncode != 0
    found = {one.known.id: one.known.remedy for one in explained(done.stderr.splitlines())}
    assert "exec --replace-strategy" in found["keras-3-fit"]
