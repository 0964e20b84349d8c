"""The environment in which examples run on a real Slurm, and the accuracies that they print."""

from __future__ import annotations

import re

import slurm_jobs

# The tasks use this environment's Python. TensorFlow does not log what it was built for.
ENVIRONMENT = {
    **slurm_jobs.ENVIRONMENT,
    "TF_CPP_MIN_LOG_LEVEL": "2",
    "TF_ENABLE_ONEDNN_OPTS": "0",
}


def accuracies(output: str) -> list[float]:
    return [float(number) for number in re.findall(r"test accuracy ([\d.]+)", output)]
