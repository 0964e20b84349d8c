"""The variables of a step on this machine: those that srun sets on a cluster of one node.

They are recorded from Slurm, but for those that lead to Slurm's own daemons (SLURM_CONF,
SLURM_WORKING_CLUSTER). The ports of srun's traffic with the tasks have no meaning here and are 0.
"""

from __future__ import annotations

import getpass
import os
import re
import socket
from typing import Dict, List, Optional

from slurm_resolver.errors import LaunchError

NODE = "localhost"

_FIRST_PORT, _LAST_PORT = 12_288, 32_767
_METHOD = r"(?:block|cyclic|fcyclic|\*)"
_DISTRIBUTION = re.compile(
    rf"(?:plane=(\d+)|(?:block|cyclic|\*)(?::{_METHOD}){{0,2}}(?:,(?:no)?pack)?|(?:no)?pack)"
)


def step_environment(num_tasks: int, cpus_per_task: Optional[int], name: str) -> Dict[str, str]:
    """Returns the variables that all tasks of a one-node step have alike."""
    job = str(os.getpid())  # no other step on this machine has it, as no other job has a job id
    cpus = str(num_tasks * (cpus_per_task or 1))
    count = str(num_tasks)
    host = socket.gethostname()
    variables = {
        "SLURMD_NODENAME": NODE,
        "SLURM_CLUSTER_NAME": "local",
        "SLURM_CPUS_ON_NODE": cpus,
        "SLURM_GTIDS": ",".join(map(str, range(num_tasks))),
        "SLURM_JOBID": job,
        "SLURM_JOB_CPUS_PER_NODE": cpus,
        "SLURM_JOB_GID": str(os.getgid()),
        "SLURM_JOB_ID": job,
        "SLURM_RESOLVER_JOB": job,  # not srun's: tells that no Slurm knows this job
        "SLURM_JOB_NAME": name,
        "SLURM_JOB_NODELIST": NODE,
        "SLURM_JOB_NUM_NODES": "1",
        "SLURM_JOB_PARTITION": "local",
        "SLURM_JOB_UID": str(os.getuid()),
        "SLURM_JOB_USER": getpass.getuser(),
        "SLURM_LAUNCH_NODE_IPADDR": "127.0.0.1",
        "SLURM_NNODES": "1",
        "SLURM_NODEID": "0",
        "SLURM_NODELIST": NODE,
        "SLURM_NPROCS": count,
        "SLURM_NTASKS": count,
        "SLURM_PRIO_PROCESS": str(os.nice(0)),
        "SLURM_SRUN_COMM_HOST": "127.0.0.1",
        "SLURM_SRUN_COMM_PORT": "0",
        "SLURM_STEPID": "0",
        "SLURM_STEP_ID": "0",
        "SLURM_STEP_LAUNCHER_PORT": "0",
        "SLURM_STEP_NODELIST": NODE,
        "SLURM_STEP_NUM_NODES": "1",
        "SLURM_STEP_NUM_TASKS": count,
        "SLURM_STEP_RESV_PORTS": ",".join(map(str, free_ports(num_tasks + 1))),
        "SLURM_STEP_TASKS_PER_NODE": count,
        "SLURM_SUBMIT_DIR": os.getcwd(),
        "SLURM_SUBMIT_HOST": host,
        "SLURM_TASKS_PER_NODE": count,
        "SLURM_TOPOLOGY_ADDR": NODE,
        "SLURM_TOPOLOGY_ADDR_PATTERN": "node",
        "SLURM_UMASK": f"{_umask():04o}",
    }
    if cpus_per_task is not None:
        variables["SLURM_CPUS_PER_TASK"] = str(cpus_per_task)
    return variables


def task_environment(rank: int) -> Dict[str, str]:
    """Returns the variables that one task of a one-node step has for itself."""
    return {"SLURM_PROCID": str(rank), "SLURM_LOCALID": str(rank)}


def distribution_variables(text: Optional[str]) -> Dict[str, str]:
    """Returns what srun sets for --distribution; on one node all of them place tasks alike.

    Raises:
        LaunchError: for what srun refuses, and for "arbitrary".
    """
    if text is None:
        return {}
    word = text.lower()
    match = _DISTRIBUTION.fullmatch(word)
    if match is None or match[1] == "0":
        hint = " (arbitrary needs Slurm, with several nodes)" if word == "arbitrary" else ""
        raise LaunchError(
            f"--distribution {text!r}: expected block, cyclic or plane=SIZE, as srun takes them"
            f"{hint}"
        )
    if match[1] is not None:
        return {"SLURM_DISTRIBUTION": "plane", "SLURM_DIST_PLANESIZE": match[1]}
    return {"SLURM_DISTRIBUTION": re.sub(r"^\*", "block", word)}


def _umask() -> int:
    mask = os.umask(0)  # the only way to ask for it is to set it
    os.umask(mask)
    return mask


def free_ports(count: int) -> List[int]:
    """Returns ports on this machine that nobody listens on, below the ephemeral ones.

    Where to start looking follows the process id, so that two steps that start at the same time
    do not find the same ones.
    """
    span = _LAST_PORT - _FIRST_PORT + 1
    start = os.getpid() * 64
    ports = []
    for offset in range(span):
        port = _FIRST_PORT + (start + offset) % span
        with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe:
            try:
                probe.bind(("", port))
            except OSError:
                continue
        ports.append(port)
        if len(ports) == count:
            return sorted(ports)
    return []  # without reserved ports the resolver derives some from the job id


def is_slurm(name: str) -> bool:
    """Variables of a step around this one would contradict its own."""
    return name.startswith(("SLURM_", "SLURMD_"))
