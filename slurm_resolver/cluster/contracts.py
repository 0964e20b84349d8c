"""The variables by which programs learn of their cluster: TF_CONFIG and its siblings, by name.

Each name is a contract that a framework reads when its program starts:

    tensorflow          TF_CONFIG: tf.distribute's TFConfigClusterResolver
    keras-distribution  KERAS_DISTRIBUTION_*: keras/src/distribution/distribution_lib.py, for JAX
    torch               what torchrun sets: torch/distributed/elastic/agent/server
    jax                 JAX_*: jax/_src/distributed.py; it takes ranks from Slurm's variables
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any, Literal, get_args

from slurm_resolver.cluster.addresses import Task

Contract = Literal["tensorflow", "keras-distribution", "torch", "jax"]
CONTRACTS = get_args(Contract)


def variables_of(
    contract: Contract,
    tasks: Sequence[Task],
    own: Task | None,
    gpus: Sequence[str] | None,
    tf_config: Mapping[str, Any],
) -> dict[str, str]:
    """Returns the variables that a contract sets in this task; {} without one.

    Raises:
        ValueError: for a name that is not in `CONTRACTS`.
    """
    if contract not in CONTRACTS:
        raise ValueError(f"{contract!r}: expected one of {', '.join(CONTRACTS)}")
    if own is None:
        return {}
    if contract == "tensorflow":
        return {"TF_CONFIG": json.dumps(tf_config)}
    if contract == "torch":
        nodes = list(dict.fromkeys(task.node for task in tasks))
        host, port = split_address(tasks[0].address)
        return {
            "MASTER_ADDR": host,
            "MASTER_PORT": port,
            "RANK": str(own.rank),
            "WORLD_SIZE": str(len(tasks)),
            "LOCAL_RANK": str(own.local_rank),
            "LOCAL_WORLD_SIZE": str(sum(task.node == own.node for task in tasks)),
            **dict.fromkeys(("GROUP_RANK", "NODE_RANK"), str(nodes.index(own.node))),
        }
    # Without this variable JAX takes only the GPU with the number SLURM_LOCALID.
    numbers = ",".join(map(str, range(len(gpus or ()))))
    devices = {"JAX_LOCAL_DEVICE_IDS": numbers} if numbers else {}
    if contract == "jax":
        return {**devices, "JAX_COORDINATOR_ADDRESS": tasks[0].address}
    return {
        **devices,
        "KERAS_DISTRIBUTION_JOB_ADDRESSES": ",".join(task.address for task in tasks),
        "KERAS_DISTRIBUTION_NUM_PROCESSES": str(len(tasks)),
        "KERAS_DISTRIBUTION_PROCESS_ID": str(own.rank),
    }


def split_address(address: str) -> tuple[str, str]:
    """Returns the host, an IPv6 address without its brackets, and the port."""
    host, _, port = address.rpartition(":")
    return host.strip("[]"), port
