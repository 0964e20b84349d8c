"""The variables of a step on this machine: those that srun sets on a cluster of one node.

They are those of the version that `slurm_resolver.local.IMITATED_SLURM` names, and the tests
compare them with it. SLURM_CONF, which leads to Slurm's daemons, is left out, and the ports that
srun itself would listen on are 0.
"""

from __future__ import annotations

import getpass
import grp
import os
import re
import socket
import time
from typing import Dict, List, Optional

from slurm_resolver.errors import LaunchError

NODE = "localhost"

_FIRST_PORT, _LAST_PORT = 12_288, 32_767
# srun tells the end of a job without a time limit as that of one of a year.
_NO_LIMIT_SECONDS = 365 * 24 * 60 * 60
_SLUID_DIGITS = "0123456789ABCDEFGHJKMNPQRSTVWXYZ"  # base 32 without letters that look like digits

# This package's own settings, which reach the tasks as under srun.
_SET_BY_USERS = {
    f"SLURM_RESOLVER_{name}"
    for name in ("NETWORK_GRACE", "SECRET", "SECRET_MEANS", "STALL_SECONDS", "START_TIMEOUT")
}
_METHOD = r"(?:block|cyclic|fcyclic|\*)"
_DISTRIBUTION = re.compile(
    rf"(?:plane=(\d+)|(?:block|cyclic|\*)(?::{_METHOD}){{0,2}}(?:,(?:no)?pack)?|(?:no)?pack)"
)


def step_environment(
    num_tasks: int,
    cpus_per_task: Optional[int],
    job_name: str,
    time_limit: Optional[int] = None,
    job_started: Optional[float] = None,
    step_id: int = 0,
) -> Dict[str, str]:
    """Returns the variables that are the same in all tasks of a one-node step.

    Args:
        time_limit: in seconds; None for none.
        job_started: when its job did, in seconds since 1970; None for now.
    """
    now = time.time() if job_started is None else job_started
    job_id = str(os.getpid())  # unique on this machine, as a job id is on a cluster
    cpus = str(num_tasks * (cpus_per_task or 1))
    tasks = str(num_tasks)
    host = socket.gethostname()
    variables = {
        "SLURMD_DEBUG": "2",  # how much slurmd logs, where the site says nothing
        "SLURMD_NODENAME": NODE,
        "SLURM_CLUSTER_NAME": "local",
        "SLURM_CPUS_ON_NODE": cpus,
        "SLURM_GTIDS": ",".join(map(str, range(num_tasks))),
        "SLURM_JOBID": job_id,
        "SLURM_JOB_CPUS_PER_NODE": cpus,
        "SLURM_JOB_END_TIME": str(int(now) + (time_limit or _NO_LIMIT_SECONDS)),
        "SLURM_JOB_GID": str(os.getgid()),
        "SLURM_JOB_GROUP": _group_name(),
        "SLURM_JOB_ID": job_id,
        "SLURM_RESOLVER_JOB": job_id,  # not srun's: it marks a job that no Slurm knows
        "SLURM_JOB_NAME": job_name,
        "SLURM_JOB_NODELIST": NODE,
        "SLURM_JOB_NUM_NODES": "1",
        "SLURM_JOB_PARTITION": "local",
        "SLURM_JOB_SLUID": _sluid(now),
        "SLURM_JOB_START_TIME": str(int(now)),
        "SLURM_JOB_UID": str(os.getuid()),
        "SLURM_JOB_USER": getpass.getuser(),
        "SLURM_LAUNCH_NODE_IPADDR": "127.0.0.1",
        "SLURM_NNODES": "1",
        "SLURM_NODEID": "0",
        "SLURM_NODELIST": NODE,
        "SLURM_NPROCS": tasks,
        "SLURM_NTASKS": tasks,
        "SLURM_OOM_KILL_STEP": "0",
        "SLURM_PRIO_PROCESS": str(os.nice(0)),
        "SLURM_SRUN_COMM_HOST": "127.0.0.1",
        "SLURM_SRUN_COMM_PORT": "0",
        "SLURM_STEPID": str(step_id),
        "SLURM_STEP_ID": str(step_id),
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


def _group_name() -> str:
    try:
        return grp.getgrgid(os.getgid()).gr_name
    except KeyError:  # in a container the number may have no name
        return str(os.getgid())


def _sluid(now: float) -> str:
    """Returns an id of this start in the form of Slurm's: an s, and 64 bits in base 32."""
    number = (int(now * 1000) << 22 | os.getpid() & 0x3F_FFFF) & (2**64 - 1)
    return "s" + "".join(_SLUID_DIGITS[number >> shift & 31] for shift in range(60, -1, -5))


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
    return name.startswith(("SLURM_", "SLURMD_")) and name not in _SET_BY_USERS
