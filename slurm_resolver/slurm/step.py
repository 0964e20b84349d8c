"""What Slurm tells one task: its variables, read and checked once, typed and frozen.

`VARIABLES` is the one table of every variable that this package reads; nothing else looks into the
environment to learn about Slurm.
"""

from __future__ import annotations

import os
import re
from typing import Any, Callable, Dict, Mapping, NamedTuple, Optional, Tuple

from slurm_resolver.errors import EnvironmentValueError, HostlistError, NotInStepError
from slurm_resolver.slurm.hostlist import MAX_HOSTS, expand_hostlist, expand_tasks_per_node

Environ = Mapping[str, str]

# Step ids that Slurm gives to what runs without srun: the batch script (-5) and the interactive
# step of salloc (-6), each also as the unsigned number that some versions print.
_NO_SRUN_STEPS = frozenset({"-5", "-6", "4294967291", "4294967290", "batch", "interactive"})

# A heterogeneous job has at most 128 components (MAX_HET_JOB_COMPS in Slurm).
_MAX_HET_SIZE = 128


def _integer(minimum: int, maximum: int) -> Callable[[str], int]:
    def parse(text: str) -> int:
        number = int(text) if re.fullmatch(r"-?[0-9]{1,18}", text) else minimum - 1
        if not minimum <= number <= maximum:
            raise ValueError(text)
        return number

    return parse


def _ranks(text: str) -> Tuple[int, ...]:
    parse = _integer(0, MAX_HOSTS - 1)
    return tuple(map(parse, text.split(",")))


def _hosts(text: str) -> Tuple[str, ...]:
    hosts = tuple(expand_hostlist(text))
    if not hosts:
        raise ValueError(text)
    return hosts


def _counts(text: str) -> Tuple[int, ...]:
    return tuple(expand_tasks_per_node(text))


def _ports(text: str) -> Tuple[int, ...]:
    """``23001-23008,23010`` is the inside of a host list's bracket: the same grammar."""
    ports = tuple(map(int, expand_hostlist(f"[{text}]")))
    if not all(1 <= port <= 65535 for port in ports):
        raise ValueError(text)
    return ports


def _distribution(text: str) -> str:
    """Only the first field places tasks on nodes; ``pack`` and ``nopack`` are no field of it."""
    first = re.split("[:,]", text)[0].strip().lower()
    if first in ("pack", "nopack", "*", "unknown"):
        return "block"
    name, _, size = first.partition("=")
    if name not in ("block", "cyclic", "plane", "arbitrary") or (size and name != "plane"):
        raise ValueError(text)
    return name


class Variable(NamedTuple):
    """One variable: its name, how to read it, what is expected, and whether empty means unset."""

    name: str
    parse: Callable[[str], Any]
    expected: str
    empty_is_unset: bool = False


_RANK = _integer(0, MAX_HOSTS - 1)
_COUNT = _integer(1, MAX_HOSTS)
_TIME = _integer(0, 2**63 - 1)
_TIMES = _integer(0, 2**31 - 1)
_A_RANK = f"a whole number from 0 to {MAX_HOSTS - 1}"
_A_COUNT = f"a whole number from 1 to {MAX_HOSTS}"
_A_HOSTLIST = "a host list such as n[1-4]"
_DEVICES = "devices separated by commas"
_A_DISTRIBUTION = "block, cyclic, plane or arbitrary"

VARIABLES: Dict[str, Variable] = {
    # the task
    "procid": Variable("SLURM_PROCID", _RANK, _A_RANK),
    "localid": Variable("SLURM_LOCALID", _RANK, _A_RANK),
    "nodeid": Variable("SLURM_NODEID", _RANK, _A_RANK),
    "nodename": Variable("SLURMD_NODENAME", str, "a node name", True),
    "gtids": Variable("SLURM_GTIDS", _ranks, "ranks separated by commas"),
    "task_pid": Variable("SLURM_TASK_PID", str, "a process id", True),
    # its step
    "job_id": Variable("SLURM_JOB_ID", str, "a job id", True),
    "step_id": Variable("SLURM_STEP_ID", str, "a step id", True),
    "num_tasks": Variable("SLURM_STEP_NUM_TASKS", _COUNT, _A_COUNT),
    "num_nodes": Variable("SLURM_STEP_NUM_NODES", _COUNT, _A_COUNT),
    "nodes": Variable("SLURM_STEP_NODELIST", _hosts, _A_HOSTLIST),
    "tasks_per_node": Variable("SLURM_STEP_TASKS_PER_NODE", _counts, "counts such as 2(x3),1"),
    "distribution": Variable("SLURM_DISTRIBUTION", _distribution, _A_DISTRIBUTION, True),
    "plane_size": Variable("SLURM_DIST_PLANESIZE", _COUNT, _A_COUNT, True),
    "resv_ports": Variable("SLURM_STEP_RESV_PORTS", _ports, "ports such as 23001-23008", True),
    # where an arbitrary distribution's list may come from
    "hostfile": Variable("SLURM_HOSTFILE", str, "a path", True),
    "arbitrary_nodelist": Variable("SLURM_ARBITRARY_NODELIST", _hosts, _A_HOSTLIST, True),
    # heterogeneous steps
    "het_size": Variable(
        "SLURM_HET_SIZE",
        _integer(0, _MAX_HET_SIZE),
        f"a whole number from 0 to {_MAX_HET_SIZE}",
        True,
    ),
    # Slurm 26.05 and later, and the topology plugin's view of this node
    "sluid": Variable("SLURM_JOB_SLUID", str, "a job's unique id", True),
    "topology": Variable("SLURM_TOPOLOGY_ADDR_PATTERN", str, "levels such as switch.node", True),
    # the allocation, to tell a process inside one from a process outside Slurm
    "job_nodelist": Variable("SLURM_JOB_NODELIST", str, _A_HOSTLIST, True),
    "job_num_tasks": Variable("SLURM_NTASKS", str, _A_COUNT, True),
    "open_mode": Variable("SLURM_OPEN_MODE", str, "a (append) or t (truncate)", True),
    # the job's end, and its next start; Slurm 22.05 does not set the end
    "job_end_time": Variable("SLURM_JOB_END_TIME", _TIME, "seconds since 1970", True),
    "restart_count": Variable("SLURM_RESTART_COUNT", _TIMES, "how often it was requeued", True),
    "array_job_id": Variable("SLURM_ARRAY_JOB_ID", str, "a job id", True),
    "array_task_id": Variable("SLURM_ARRAY_TASK_ID", str, "a whole number", True),
    # written by `slurm-resolver run`, whose jobs no Slurm knows
    "imitated_job": Variable("SLURM_RESOLVER_JOB", str, "a job id", True),
    # GPUs
    "cuda_devices": Variable("CUDA_VISIBLE_DEVICES", str, _DEVICES),
    "rocr_devices": Variable("ROCR_VISIBLE_DEVICES", str, _DEVICES),
    "hip_devices": Variable("HIP_VISIBLE_DEVICES", str, _DEVICES),
    "ze_devices": Variable("ZE_AFFINITY_MASK", str, _DEVICES),
    "ordinal_devices": Variable("GPU_DEVICE_ORDINAL", str, _DEVICES),
    "tres_bind": Variable("SLURMD_TRES_BIND", str, "a binding such as gpu:single:1", True),
    "gpus_on_node": Variable("SLURM_GPUS_ON_NODE", _integer(0, 4096), "a count of GPUs", True),
    "job_gpus": Variable("SLURM_JOB_GPUS", str, "devices of the batch script's node", True),
    "step_gpus": Variable("SLURM_STEP_GPUS", str, "devices of the node, separated by commas", True),
    "gpus_applied": Variable("SLURM_RESOLVER_GPUS", str, "what this package wrote", True),
}

# One of each a component, numbered from 0; the PACK names are what a direct `srun A : B` sets.
_HET_NODES = ("SLURM_JOB_NODELIST_HET_GROUP_", "SLURM_JOB_NODELIST_PACK_GROUP_")
_HET_DISTRIBUTION = ("SLURM_DISTRIBUTION_HET_GROUP_", "SLURM_DISTRIBUTION_PACK_GROUP_")
_HET_PLANE_SIZE = ("SLURM_DIST_PLANESIZE_HET_GROUP_", "SLURM_DIST_PLANESIZE_PACK_GROUP_")


class Component(NamedTuple):
    """One component of a heterogeneous job: its nodes, and how its tasks are dealt to them."""

    group: int
    nodes: Tuple[str, ...]
    distribution: Optional[str]
    plane_size: Optional[int]


class SlurmStep(NamedTuple):
    """The Slurm variables of one task; None where one is not set. `VARIABLES` names each.

    `tasks_per_node` goes with `nodes`, entry by entry. `components` is empty outside a
    heterogeneous job; `layout` decides whether the step really is heterogeneous.
    """

    procid: Optional[int] = None
    localid: Optional[int] = None
    nodeid: Optional[int] = None
    nodename: Optional[str] = None
    gtids: Optional[Tuple[int, ...]] = None
    task_pid: Optional[str] = None
    job_id: Optional[str] = None
    step_id: Optional[str] = None
    num_tasks: Optional[int] = None
    num_nodes: Optional[int] = None
    nodes: Optional[Tuple[str, ...]] = None
    tasks_per_node: Optional[Tuple[int, ...]] = None
    distribution: Optional[str] = None
    plane_size: Optional[int] = None
    resv_ports: Optional[Tuple[int, ...]] = None
    hostfile: Optional[str] = None
    arbitrary_nodelist: Optional[Tuple[str, ...]] = None
    het_size: Optional[int] = None
    sluid: Optional[str] = None
    topology: Optional[str] = None
    job_nodelist: Optional[str] = None
    job_num_tasks: Optional[str] = None
    open_mode: Optional[str] = None
    job_end_time: Optional[int] = None
    restart_count: Optional[int] = None
    array_job_id: Optional[str] = None
    array_task_id: Optional[str] = None
    imitated_job: Optional[str] = None
    cuda_devices: Optional[str] = None
    rocr_devices: Optional[str] = None
    hip_devices: Optional[str] = None
    ze_devices: Optional[str] = None
    ordinal_devices: Optional[str] = None
    tres_bind: Optional[str] = None
    gpus_on_node: Optional[int] = None
    job_gpus: Optional[str] = None
    step_gpus: Optional[str] = None
    gpus_applied: Optional[str] = None
    components: Tuple[Component, ...] = ()

    @classmethod
    def read(cls, environ: Optional[Environ] = None) -> SlurmStep:
        """Reads the variables of `environ` (by default `os.environ`).

        Raises:
            EnvironmentValueError: for a variable whose value makes no sense. One that is not set
                is None here, and an error only where it is needed (`require`).
        """
        if environ is None:
            environ = os.environ
        values = {field: _read(environ, variable) for field, variable in VARIABLES.items()}
        return cls(components=_components(environ, values["het_size"]), **values)

    def require(self, field: str) -> Any:
        """Returns a field's value; an EnvironmentValueError names the variable where it is None."""
        value = getattr(self, field)
        if value is None:
            variable = VARIABLES[field]
            raise EnvironmentValueError(
                f"{variable.name} is not set; expected {variable.expected}. srun sets it in every "
                "task: start this program with srun, or with `slurm-resolver run` where there is "
                "no Slurm."
            )
        return value

    @property
    def place(self) -> str:
        """Where this process runs: "step" (a task that srun started), "allocation" or "none".

        An allocation without srun is a batch script, or the shell of salloc.
        """
        if self.step_id in _NO_SRUN_STEPS:
            return "allocation"
        if self.nodes is not None or self.num_tasks is not None:
            return "step"
        if self.job_id is not None or self.job_nodelist is not None:
            return "allocation"
        return "none" if self.procid is None else "step"

    @property
    def imitated(self) -> bool:
        """Whether `slurm-resolver run` made this step: a Slurm here would not know its job.

        A real step that is started inside has the variable as well, with another job's id.
        """
        return self.imitated_job is not None and self.imitated_job == self.job_id

    def not_in_step(self) -> NotInStepError:
        """The error for a process inside an allocation that srun did not start."""
        tasks = f" -n {self.job_num_tasks}" if self.job_num_tasks else ""
        return NotInStepError(
            f"this process runs inside the allocation of job {self.job_id or '(unknown)'}, but "
            "srun did not start it, so that it has no rank among the tasks. In the batch script or "
            f"in salloc's shell, start the program as a step: srun{tasks} python your_script.py"
        )


def _read(environ: Environ, variable: Variable) -> Any:
    text = environ.get(variable.name)
    if text is None or (variable.empty_is_unset and text in ("", "(null)")):
        return None
    try:
        return variable.parse(text)
    except HostlistError as error:
        reason = f" ({error})"
    except ValueError:
        reason = ""
    shown = text if len(text) <= 200 else f"{text[:100]} … {text[-100:]}"
    raise EnvironmentValueError(
        f"{variable.name}={shown!r}: expected {variable.expected}{reason}. Slurm sets this "
        "variable itself: look for a script that exports it, or unset it and start again with srun."
    )


def _read_first(environ: Environ, prefixes: Tuple[str, ...], group: int, variable: Variable) -> Any:
    for prefix in prefixes:
        value = _read(environ, variable._replace(name=f"{prefix}{group}", empty_is_unset=True))
        if value is not None:
            return value
    return None


def _components(environ: Environ, het_size: Optional[int]) -> Tuple[Component, ...]:
    components = []
    for group in range(het_size or 0):
        nodes = _read_first(environ, _HET_NODES, group, VARIABLES["nodes"])
        if nodes is None:
            raise EnvironmentValueError(
                f"SLURM_HET_SIZE={het_size}, but neither {_HET_NODES[0]}{group} nor "
                f"{_HET_NODES[1]}{group} is set; expected one of them for every component."
            )
        distribution = _read_first(environ, _HET_DISTRIBUTION, group, VARIABLES["distribution"])
        plane_size = _read_first(environ, _HET_PLANE_SIZE, group, VARIABLES["plane_size"])
        components.append(Component(group, nodes, distribution, plane_size))
    return tuple(components)
