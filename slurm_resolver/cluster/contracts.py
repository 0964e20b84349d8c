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
CONTRACTS: tuple[Contract, ...] = get_args(Contract)


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
        host, port = _split(tasks[0].address)
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


def placeholders(tasks: Sequence[Task], own: Task | None) -> dict[str, str]:
    """Returns the value of each {name} in a program's arguments and variables.

    Lists are separated by commas, in the order of index or rank. All are "" without a task.
    """
    by_index = sorted(tasks, key=lambda task: task.index)
    values = {
        f"{job}_host{'' if job == 'chief' else 's'}": ",".join(
            task.address for task in by_index if task.job == job
        )
        for job in ("ps", "worker", "chief")
    }
    for name in ("job", "index", "rank", "local_rank", "node", "address"):
        values[name] = str(getattr(own, name)) if own else ""
    values["host"], values["port"] = _split(values["address"])
    values["main_address"] = tasks[0].address if own else ""
    values["main_host"], values["main_port"] = _split(values["main_address"])
    values["num_tasks"] = str(len(tasks)) if own else ""
    values["hosts"] = ",".join(task.address for task in tasks)
    return values


def _split(address: str) -> tuple[str, str]:
    """Returns the host, an IPv6 address without its brackets, and the port."""
    host, _, port = address.rpartition(":")
    return host.strip("[]"), port
