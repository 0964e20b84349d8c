"""The environment of each task of a step on this machine.

The variables are those that srun sets on a cluster of one node, without those about Slurm's daemons
and the site; the tests compare them with srun of the version `slurm_resolver.local.IMITATED_SLURM`.
"""

from __future__ import annotations

import os
import re
from contextlib import suppress
from getpass import getuser
from pathlib import Path
from random import sample
from socket import gethostname

from slurm_resolver.coordination.tcp import listen_at
from slurm_resolver.errors import GpuError, LaunchError
from slurm_resolver.local import RunOptions
from slurm_resolver.slurm.gpu_variables import (
    CUDA,
    GPU_VARIABLES,
    SET_BY_SLURM,
    count_driver_gpus,
    read_visible_devices,
)
from slurm_resolver.slurm.step_variables import SlurmStep
from slurm_resolver.slurm.variable_types import Environ, Exports

_PORTS = range(12_288, 32_768)
# srun sets the end of a job without a time limit to one year after its start.
_NO_LIMIT_SECONDS = 31_536_000
# The variables of all tasks of a step.
_VARIABLES = """\
SLURMD_NODENAME=localhost
SLURM_CLUSTER_NAME=local
SLURM_CPUS_ON_NODE={tasks}
SLURM_GTIDS={ranks}
SLURM_JOBID={job_id}
SLURM_JOB_CPUS_PER_NODE={tasks}
SLURM_JOB_END_TIME={end}
SLURM_JOB_ID={job_id}
SLURM_JOB_NAME={name}
SLURM_JOB_NODELIST=localhost
SLURM_JOB_NUM_NODES=1
SLURM_JOB_PARTITION=local
SLURM_JOB_START_TIME={start}
SLURM_JOB_USER={user}
SLURM_NNODES=1
SLURM_NODEID=0
SLURM_NODELIST=localhost
SLURM_NPROCS={tasks}
SLURM_NTASKS={tasks}
SLURM_RESOLVER_JOB={job_id}
SLURM_STEPID={step_id}
SLURM_STEP_ID={step_id}
SLURM_STEP_NODELIST=localhost
SLURM_STEP_NUM_NODES=1
SLURM_STEP_NUM_TASKS={tasks}
SLURM_STEP_RESV_PORTS={ports}
SLURM_STEP_TASKS_PER_NODE={tasks}
SLURM_SUBMIT_DIR={folder}
SLURM_SUBMIT_HOST={host}
SLURM_TASKS_PER_NODE={tasks}"""  # SLURM_RESOLVER_JOB, not srun's, marks a job that no Slurm knows
# Variables that describe a step. This package's others are settings, which tasks inherit.
_OF_A_STEP = re.compile(
    "SLURMD_.*|SLURM_(?!RESOLVER).*|SLURM_RESOLVER_(JOB|LAYOUT|GPUS|.*_RESTART|TRAINING_REPORTS)"
)


def step_environment(
    options: RunOptions, job_started: float, restarts: int, step_id: int
) -> Exports:
    """Returns the variables that are the same in all tasks of a step, the launcher's own included.

    `job_started` is in seconds since 1970; `restarts` counts how often the job was requeued before.

    Raises:
        LaunchError: if the current folder was removed, where srun refuses to start as well.
    """
    removed = GPU_VARIABLES if options.gpu_variables else ()
    inherited = {
        name: value
        for name, value in os.environ.items()
        if name not in removed and not _OF_A_STEP.fullmatch(name)
    }
    start = int(job_started)
    values = {
        "tasks": options.ntasks,
        "ranks": ",".join(map(str, range(options.ntasks))),
        "job_id": os.getpid(),  # unique on this machine, as a job id is on a cluster
        "step_id": step_id,
        "start": start,
        "end": start + (options.time_limit or _NO_LIMIT_SECONDS),
        "name": Path(options.command[0]).name,
        "user": _user_name(),
        "ports": ",".join(map(str, free_ports(options.ntasks + 1))),
        "folder": _current_folder(),
        "host": gethostname(),
    }
    variables = dict(line.split("=") for line in _VARIABLES.splitlines())
    return {
        # Python would keep back what a task prints into a pipe until the task ends.
        "PYTHONUNBUFFERED": "1",
        "TF_CPP_MIN_LOG_LEVEL": "1",  # TensorFlow's warnings and errors stay visible
        **inherited,
        **{name: text.format_map(values) for name, text in variables.items()},
        **options.gpu_variables,
        **({"SLURM_RESTART_COUNT": str(restarts)} if restarts else {}),
    }


def _user_name() -> str:
    """Returns the user's name, or the number of one that has none, as in many containers."""
    try:
        return getuser()
    except (KeyError, OSError):  # OSError from Python 3.13 on
        return str(os.getuid())


def _current_folder() -> str:
    try:
        return os.getcwd()
    except OSError as error:
        raise LaunchError(
            f"the current folder cannot be found ({error.strerror}): it was probably removed, or "
            'removed and created again. Change to one that exists, such as by cd "$PWD"'
        ) from None


def free_ports(count: int) -> list[int]:
    """Returns ports of this machine that no process listens on, below the ephemeral ones."""
    ports = []
    # in any order, so that two steps that start at the same time find different ones
    for port in sample(_PORTS, len(_PORTS)):
        with suppress(OSError), listen_at(port):
            ports.append(port)
        if len(ports) == count:
            break
    return sorted(ports)


def gpu_variables(gpus: int | None, environ: Environ) -> Environ:
    """Returns the GPU variables of all tasks; none if `gpus`, the number of the step's, is None.

    The step gets the first of the GPUs that `environ` shows, and every task sees all of them. All
    makers' variables get the same value, as from a Slurm that finds the GPUs in gres.conf.

    Raises:
        GpuError: if more GPUs are asked for than CUDA_VISIBLE_DEVICES names or, without it, than
            the driver shows.
    """
    if gpus is None:
        return {}
    if gpus == 0:
        return {"SLURM_GPUS": "0", CUDA: ""}
    set_here = {name: environ[name] for name in GPU_VARIABLES if name in environ}
    visible = read_visible_devices(SlurmStep.read(set_here))
    devices = visible.devices
    if devices is None:
        driver = count_driver_gpus()
        devices = tuple(map(str, range(gpus if driver is None else driver)))
    if gpus > len(devices):
        raise GpuError(
            f"GPUs requested: {gpus}, but {visible.name}, or the driver without it, shows "
            f"{','.join(devices) or 'none'}. Ask for fewer, or name devices in {CUDA} to simulate "
            "more."
        )
    shown = ",".join(devices[:gpus])
    # The other makers' drivers do not know this one's UUIDs.
    names = SET_BY_SLURM if all(map(str.isdigit, devices[:gpus])) else (visible.name,)
    return {
        "SLURM_GPUS": str(gpus),
        "SLURM_GPUS_ON_NODE": str(gpus),
        "SLURM_STEP_GPUS": shown,
        **dict.fromkeys(names, shown),
    }
