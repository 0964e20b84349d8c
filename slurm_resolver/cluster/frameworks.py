"""The variables by which programs learn of their cluster: TF_CONFIG and its siblings, by name.

Each name is a contract that a framework reads when its program starts; `Cluster.variables` writes
them:

    tensorflow          TF_CONFIG: tf.distribute's TFConfigClusterResolver
    keras-distribution  KERAS_DISTRIBUTION_*: keras/src/distribution/distribution_lib.py, for JAX
    torch               what torchrun sets: torch/distributed/elastic/agent/server
    jax                 JAX_*: jax/_src/distributed.py; it takes ranks from Slurm's variables
"""

from __future__ import annotations

from typing import Literal, get_args

Contract = Literal["tensorflow", "keras-distribution", "torch", "jax"]
CONTRACTS = get_args(Contract)
