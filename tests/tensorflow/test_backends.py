"""Keras on another backend than TensorFlow."""

from __future__ import annotations

import subprocess
import sys

import pytest

pytestmark = pytest.mark.tensorflow

# JAX is not needed for what the strategy says of it.
PROGRAM = """
import keras
import numpy as np
from slurm_resolver import MultiWorkerMirroredStrategy
keras.backend.backend = lambda: "jax"
with MultiWorkerMirroredStrategy().scope():
    model = keras.Sequential([keras.Input((2,)), keras.layers.Dense(1)])
    model.compile("sgd", "mse")
model.fit(np.ones((4, 2)), np.ones((4, 1)))
"""


def test_a_model_of_jax_is_refused() -> None:
    done = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True)
    assert done.returncode == 1
    error = done.stderr.strip().splitlines()[-1]
    assert error.startswith("slurm_resolver.errors.KerasError: Keras computes with jax")
    assert "srun slurm-resolver exec --env keras-distribution" in error
