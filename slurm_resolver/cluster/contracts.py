"""The variables by which programs learn of their cluster: TF_CONFIG and its siblings, by name.

Each name is a contract that a framework reads when its program starts:

    tensorflow          TF_CONFIG: tf.distribute's TFConfigClusterResolver
    dtensor             DTENSOR_*: tensorflow/dtensor/python/config.py
    keras-distribution  KERAS_DISTRIBUTION_*: keras/src/distribution/distribution_lib.py, for JAX
    keras-tuner         KERASTUNER_*: keras_tuner/src/distribute/utils.py
    torch               what torchrun sets: torch/distributed/elastic/agent/server
    jax                 JAX_*: jax/_src/distributed.py; it takes ranks from Slurm's variables
"""

from __future__ import annotations

import json
from typing import Any, Dict, List, Literal, Optional, Sequence, Tuple

from slurm_resolver.cluster.tasks import Task

Contract = Literal["tensorflow", "dtensor", "keras-distribution", "keras-tuner", "torch", "jax"]


CONTRACTS: Tuple[Contract, ...] = (
    "tensorflow",
    "dtensor",
    "keras-distribution",
    "keras-tuner",
    "torch",
    "jax",
)


def variables_of(
    contract: Contract,
    tasks: Sequence[Task],
    own: Optional[Task],
    gpus: Optional[Sequence[str]],
    tf_config: Dict[str, Any],
) -> Dict[str, str]:
    """Returns what a contract sets in the task `own`; {} where its program trains alone without it.

    Raises:
        ValueError: for a name that is none of `CONTRACTS`.
    """
    if contract not in CONTRACTS:
        raise ValueError(f"{contract!r}: expected one of {', '.join(CONTRACTS)}")
    if own is None:
        return {}
    main, number = tasks[0].address, str(len(tasks))
    addresses = ",".join(task.address for task in tasks)
    if contract == "tensorflow":
        return {"TF_CONFIG": json.dumps(tf_config)}
    if contract == "keras-distribution":
        return {
            "KERAS_DISTRIBUTION_JOB_ADDRESSES": addresses,
            "KERAS_DISTRIBUTION_NUM_PROCESSES": number,
            "KERAS_DISTRIBUTION_PROCESS_ID": str(own.rank),
        }
    if contract == "torch":
        return _torch(tasks, own)
    if contract == "jax":
        variables = {"JAX_COORDINATOR_ADDRESS": main}
        if gpus:  # else it takes the one with the number SLURM_LOCALID of those it sees
            variables["JAX_LOCAL_DEVICE_IDS"] = ",".join(map(str, range(len(gpus))))
        return variables
    if len(tasks) == 1:  # either would wait for a server that nobody starts
        return {}
    if contract == "keras-tuner":
        return _keras_tuner(tasks, own)
    return {
        "DTENSOR_JOBS": addresses,
        "DTENSOR_NUM_CLIENTS": number,
        "DTENSOR_CLIENT_ID": str(own.rank),
        "DTENSOR_JOB_NAME": "worker",
    }


def _keras_tuner(tasks: Sequence[Task], own: Task) -> Dict[str, str]:
    """The chief only hands out trials; each of the others is a tuner, and trains by itself."""
    chief = next((task for task in tasks if task.job == "chief"), tasks[0])
    tuners = [task.rank for task in tasks if task.rank != chief.rank]
    host, _, port = chief.address.rpartition(":")
    is_chief = own.rank == chief.rank
    return {
        "KERASTUNER_TUNER_ID": "chief" if is_chief else f"tuner{tuners.index(own.rank)}",
        # The chief listens at this address: on some nodes the own name is 127.0.1.1.
        "KERASTUNER_ORACLE_IP": "[::]" if is_chief else host,
        "KERASTUNER_ORACLE_PORT": port,
    }


def _torch(tasks: Sequence[Task], own: Task) -> Dict[str, str]:
    nodes: List[str] = list(dict.fromkeys(task.node for task in tasks))
    host, port = _split(tasks[0].address)
    node_rank = str(nodes.index(own.node))
    return {
        "MASTER_ADDR": host,
        "MASTER_PORT": port,
        "RANK": str(own.rank),
        "WORLD_SIZE": str(len(tasks)),
        "LOCAL_RANK": str(own.local_rank),
        "LOCAL_WORLD_SIZE": str(sum(task.node == own.node for task in tasks)),
        "GROUP_RANK": node_rank,
        "NODE_RANK": node_rank,
    }


def placeholders(
    tasks: Sequence[Task], own: Optional[Task], data_service: Optional[str]
) -> Dict[str, str]:
    """Returns by name what stands for {name} in a program's arguments and variables.

    Lists are separated by commas, in the order of index or rank; all are "" where there is no task.
    """
    hosts_of: Dict[str, List[str]] = {}
    for task in sorted(tasks, key=lambda task: (task.job, task.index)):
        hosts_of.setdefault(task.job, []).append(task.address)
    main = tasks[0].address if own else ""
    host, port = _split(own.address if own else "")
    main_host, main_port = _split(main)
    return {
        "job": own.job if own else "",
        "index": str(own.index) if own else "",
        "rank": str(own.rank) if own else "",
        "local_rank": str(own.local_rank) if own else "",
        "num_tasks": str(len(tasks)) if own else "",
        "node": own.node if own else "",
        "address": own.address if own else "",
        "host": host,
        "port": port,
        "main_address": main,
        "main_host": main_host,
        "main_port": main_port,
        "hosts": ",".join(task.address for task in tasks),
        "ps_hosts": ",".join(hosts_of.get("ps", [])),
        "worker_hosts": ",".join(hosts_of.get("worker", [])),
        "chief_host": ",".join(hosts_of.get("chief", [])),
        "data_service": data_service or "",
    }


def _split(address: str) -> Tuple[str, str]:
    """Returns the host, an IPv6 address without its brackets, and the port."""
    host, _, port = address.rpartition(":")
    return host.strip("[]"), port
