"""The variables of a step on this machine: those that srun sets on a cluster of one node.

They were recorded from Slurm. Those that lead to Slurm's daemons (SLURM_CONF,
SLURM_WORKING_CLUSTER) are left out. The ports that srun itself would listen on are 0.
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


def step_environment(num_tasks: int, cpus_per_task: Optional[int], job_name: str) -> Dict[str, str]:
    """Returns the variables that are the same in all tasks of a one-node step."""
    job_id = str(os.getpid())  # unique on this machine, as a job id is on a cluster
    cpus = str(num_tasks * (cpus_per_task or 1))
    tasks = str(num_tasks)
    host = socket.gethostname()
    variables = {
        "SLURMD_NODENAME": NODE,
        "SLURM_CLUSTER_NAME": "local",
        "SLURM_CPUS_ON_NODE": cpus,
        "SLURM_GTIDS": ",".join(map(str, range(num_tasks))),
        "SLURM_JOBID": job_id,
        "SLURM_JOB_CPUS_PER_NODE": cpus,
        "SLURM_JOB_GID": str(os.getgid()),
        "SLURM_JOB_ID": job_id,
        "SLURM_RESOLVER_JOB": job_id,  # not srun's: it marks a job that no Slurm knows
        "SLURM_JOB_NAME": job_name,
        "SLURM_JOB_NODELIST": NODE,
        "SLURM_JOB_NUM_NODES": "1",
        "SLURM_JOB_PARTITION": "local",
        "SLURM_JOB_UID": str(os.getuid()),
        "SLURM_JOB_USER": getpass.getuser(),
        "SLURM_LAUNCH_NODE_IPADDR": "127.0.0.1",
        "SLURM_NNODES": "1",
        "SLURM_NODEID": "0",
        "SLURM_NODELIST": NODE,
        "SLURM_NPROCS": tasks,
        "SLURM_NTASKS": tasks,
        "SLURM_PRIO_PROCESS": str(os.nice(0)),
        "SLURM_SRUN_COMM_HOST": "127.0.0.1",
        "SLURM_SRUN_COMM_PORT": "0",
        "SLURM_STEPID": "0",
        "SLURM_STEP_ID": "0",
        "SLURM_STEP_LAUNCHER_PORT": "0",
        "SLURM_STEP_NODELIST": NODE,
        "SLURM_STEP_NUM_NODES": "1",
        "SLURM_STEP_NUM_TASKS": tasks,
        "SLURM_STEP_RESV_PORTS": ",".join(map(str, free_ports(num_tasks + 1))),
        "SLURM_STEP_TASKS_PER_NODE": tasks,
        "SLURM_SUBMIT_DIR": os.getcwd(),
        "SLURM_SUBMIT_HOST": host,
        "SLURM_TASKS_PER_NODE": tasks,
        "SLURM_TOPOLOGY_ADDR": NODE,
        "SLURM_TOPOLOGY_ADDR_PATTERN": "node",
        "SLURM_UMASK": f"{_umask():04o}",
    }
    if cpus_per_task is not None:
        variables["SLURM_CPUS_PER_TASK"] = str(cpus_per_task)
    return variables


def task_environment(rank: int) -> Dict[str, str]:
    """Returns the variables that differ from task to task."""
    return {"SLURM_PROCID": str(rank), "SLURM_LOCALID": str(rank)}


def distribution_variables(text: Optional[str]) -> Dict[str, str]:
    """Returns what srun sets for --distribution; on one node each gives the same layout.

    Raises:
        LaunchError: for a value that srun refuses, and for "arbitrary".
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
    """Returns ports of this machine that no process listens on, below the ephemeral ones.

    The search starts at a port that depends on the process id, so that two steps that start at
    the same time find different ones.
    """
    number = _LAST_PORT - _FIRST_PORT + 1
    start = os.getpid() * 64
    ports = []
    for offset in range(number):
        port = _FIRST_PORT + (start + offset) % number
        with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe:
            try:
                probe.bind(("", port))
            except OSError:
                continue
        ports.append(port)
        if len(ports) == count:
            return sorted(ports)
    return []  # without reserved ports the resolver derives some from the job id


def is_slurm_variable(name: str) -> bool:
    """Returns whether Slurm sets it: those of a step around this one must not reach the tasks."""
    return name.startswith(("SLURM_", "SLURMD_"))
