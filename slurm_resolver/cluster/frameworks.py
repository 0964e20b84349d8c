"""The variables by which programs learn of their cluster: TF_CONFIG and its siblings, by name.

Each name is a contract that a framework reads when its program starts:

    tensorflow          TF_CONFIG: tf.distribute's TFConfigClusterResolver
    keras-distribution  KERAS_DISTRIBUTION_*: keras/src/distribution/distribution_lib.py, for JAX
    torch               what torchrun sets: torch/distributed/elastic/agent/server
    jax                 JAX_*: jax/_src/distributed.py; it takes ranks from Slurm's variables
"""

from __future__ import annotations

from typing import Literal, get_args

Contract = Literal["tensorflow", "keras-distribution", "torch", "jax"]
CONTRACTS = get_args(Contract)

# The variables of each, with the values of `Cluster.variables`, except those with an empty value.
TEMPLATES = {
    "tensorflow": {"TF_CONFIG": "{tf_config}"},
    "keras-distribution": {
        "KERAS_DISTRIBUTION_JOB_ADDRESSES": "{hosts}",
        "KERAS_DISTRIBUTION_NUM_PROCESSES": "{num_tasks}",
        "KERAS_DISTRIBUTION_PROCESS_ID": "{rank}",
        # Without this variable JAX takes only the GPU with the number SLURM_LOCALID.
        "JAX_LOCAL_DEVICE_IDS": "{gpus}",
    },
    "torch": {
        "MASTER_ADDR": "{main_host}",
        "MASTER_PORT": "{main_port}",
        "RANK": "{rank}",
        "WORLD_SIZE": "{num_tasks}",
        "LOCAL_RANK": "{gpu}",
        "LOCAL_WORLD_SIZE": "{tasks_on_node}",
        "GROUP_RANK": "{node_number}",
        "NODE_RANK": "{node_number}",
    },
    "jax": {
        "JAX_COORDINATOR_ADDRESS": "{main_address}",
        "JAX_LOCAL_DEVICE_IDS": "{gpus}",
    },
}
