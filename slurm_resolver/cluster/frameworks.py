"""The variables by which programs learn of their cluster: TF_CONFIG and its siblings, by name.

Each name is a contract that a framework reads when its program starts:

    tensorflow          TF_CONFIG: tf.distribute's TFConfigClusterResolver
    keras-distribution  KERAS_DISTRIBUTION_*: keras/src/distribution/distribution_lib.py, for JAX
    torch               what torchrun sets: torch/distributed/elastic/agent/server
    jax                 JAX_*: jax/_src/distributed.py; it takes ranks from Slurm's variables
"""

from __future__ import annotations

import json
from typing import Literal, get_args

from slurm_resolver.cluster.addresses import Task
from slurm_resolver.cluster.resolved_step import ResolvedStep
from slurm_resolver.slurm.gpu_variables import numbered
from slurm_resolver.slurm.variable_types import Exports

Contract = Literal["tensorflow", "keras-distribution", "torch", "jax"]
CONTRACTS = get_args(Contract)

# The variables of each, with the values of `framework_variables`; those with an empty value are not
# set.
_TEMPLATES = {
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


def framework_variables(cluster: ResolvedStep, contract: Contract) -> Exports:
    """Returns the variables that describe the cluster to a framework: see `Cluster.variables`."""
    if contract not in CONTRACTS:
        raise ValueError(f"contract={contract!r}: expected one of {', '.join(CONTRACTS)}")
    task = cluster.task
    if not task:
        return {}
    node = cluster.layout.node_of[task.rank]
    values = {
        **placeholders(cluster),
        "tf_config": json.dumps(cluster.tf_config()),
        "node_number": node,
        "tasks_on_node": len(cluster.layout.ranks_on(node)),
        # A program of PyTorch uses the GPU with this number. Slurm may show it fewer than the node
        # has.
        "gpu": task.local_rank % len(cluster.gpu_decision.visible_before or cluster.tasks),
        "gpus": ",".join(numbered(cluster.gpus or ())),
    }
    return {
        name: text
        for name, template in _TEMPLATES[contract].items()
        if (text := template.format(**values))
    }


def placeholders(cluster: ResolvedStep) -> dict[str, str]:
    """Returns the value of each {name} in a program's arguments and variables.

    Lists are separated by commas, in the order of index or rank. All are "" for an empty cluster.
    """
    addresses = [task.address for task in cluster.tasks]
    values = {name: str(getattr(cluster.task, name, "")) for name in Task.__annotations__}
    values.update(
        hosts=",".join(addresses),
        num_tasks=str(len(addresses) or ""),
        main_address="".join(addresses[:1]),
    )
    for job, name in (("ps", "ps_hosts"), ("worker", "worker_hosts"), ("chief", "chief_host")):
        values[name] = ",".join(cluster.addresses.get(job, ()))
    for prefix in ("", "main_"):
        host, _, port = values[f"{prefix}address"].rpartition(":")
        values[f"{prefix}host"] = host.strip("[]")  # of an IPv6 address
        values[f"{prefix}port"] = port
    return values
