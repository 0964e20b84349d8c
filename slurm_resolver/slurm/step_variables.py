"""The variables of one task, read and checked once.

`SlurmStep` lists every variable of Slurm that describes a task; no other module reads these. Their
meaning is in srun(1), section OUTPUT ENVIRONMENT VARIABLES, and sbatch(1). It also lists those of
this package, and of launchers, GPUs and TensorFlow.
"""

from __future__ import annotations

import os
import re
from typing import Any, NamedTuple

from slurm_resolver.errors import EnvironmentValueError
from slurm_resolver.slurm.ancestors import Ancestors, find_ancestors, is_component
from slurm_resolver.slurm.hostlist import expand_hostlist, expand_tasks_per_node
from slurm_resolver.slurm.variable_types import (
    Environ,
    Nodes,
    Value,
    Variable,
    devices_variable,
    number_variable,
    parse_distribution,
    parse_gpu_binding,
    parse_ports,
    parse_switch,
    text_variable,
)
from slurm_resolver.timeouts import Timeouts

# The last sentence of a message about variables that contradict each other.
RESTART_HINT = (
    "These variables do not belong to one step: start the program again with srun, from a shell "
    "that exports none of them."
)

# The step ids of the batch script (-5) and of salloc's shell (-6), which srun does not start. Some
# versions of Slurm print them as unsigned numbers.
_STEP_IDS_WITHOUT_SRUN = ("-5", "-6", "4294967291", "4294967290", "batch", "interactive")

# What Slurm sets in its jobs, and users hardly set for srun, as they do SLURM_CONF.
_SET_BY_SLURM = re.compile(
    r"SLURMD_|SLURM_(JOB(?!_NAME$)|STEP|ARRAY_|SUBMIT_|SRUN_COMM|LAUNCH_NODE|TOPOLOGY_|TASK_PID"
    r"|TASKS_|NTASKS|NPROCS|NNODES|NODEID|NODELIST|LOCALID|GTIDS|CPUS_|GPUS_|PRIO_|UMASK)"
)
_IN_EVERY_JOB = {"SLURM_JOB_ID", "SLURM_JOB_NUM_NODES", "SLURM_TASKS_PER_NODE"}


class Component(NamedTuple):
    """One component of a heterogeneous job: its nodes, and how its ranks are placed on them."""

    group: int
    nodes: Nodes
    distribution: str | None
    plane_size: int | None


class SlurmStep:
    """The variables of one task: a field for each variable, None if it is not set.

    ``tasks_per_node[i]`` is the number of tasks on ``nodes[i]``. `components` is empty outside a
    heterogeneous job. A step is not changed; `replace` returns a changed copy. Times are in
    seconds.

    Three fields are not variables: `ancestors` is what started this process; `is_component` is
    whether this is a component of a heterogeneous step, which no variable shows; `remains` are the
    names of Slurm's variables where others were removed, and what started this process is hidden.
    """

    # the task
    rank = number_variable("SLURM_PROCID")
    local_rank = number_variable("SLURM_LOCALID")
    node_id = number_variable("SLURM_NODEID")
    node_name = text_variable("SLURMD_NODENAME")
    node_ranks = text_variable("SLURM_GTIDS")
    task_pid = text_variable("SLURM_TASK_PID")
    # its step
    cluster_name = text_variable("SLURM_CLUSTER_NAME")
    job_id = text_variable("SLURM_JOB_ID")
    step_id = text_variable("SLURM_STEP_ID")
    num_tasks = number_variable("SLURM_STEP_NUM_TASKS", 1)
    num_nodes = number_variable("SLURM_STEP_NUM_NODES", 1)
    nodes = Variable("SLURM_STEP_NODELIST", expand_hostlist, "a host list such as n[1-4]")
    tasks_per_node = Variable(
        "SLURM_STEP_TASKS_PER_NODE", expand_tasks_per_node, "counts such as 2(x3),1"
    )
    distribution = Variable(
        "SLURM_DISTRIBUTION", parse_distribution, "block, cyclic, plane or arbitrary"
    )
    plane_size = number_variable("SLURM_DIST_PLANESIZE", 1)
    reserved_ports = Variable("SLURM_STEP_RESV_PORTS", parse_ports, "ports such as 23001-23008")
    # heterogeneous jobs, of at most 128 components (MAX_HET_JOB_COMPS in Slurm)
    het_size = number_variable("SLURM_HET_SIZE", 0, 128)
    het_job_id = text_variable("SLURM_JOB_ID_PACK_GROUP_0")
    # set from Slurm 26.05 on
    sluid = text_variable("SLURM_JOB_SLUID")
    # the allocation; set without srun as well
    job_num_tasks = number_variable("SLURM_NTASKS")
    job_tasks_per_node = number_variable("SLURM_NTASKS_PER_NODE")
    job_num_nodes = number_variable("SLURM_JOB_NUM_NODES")
    cpus_per_task = number_variable("SLURM_CPUS_PER_TASK", 1)
    cpus_on_node = number_variable("SLURM_CPUS_ON_NODE", 1)
    # the job's end (Slurm 22.05 does not set it), and its next start
    job_end_time = number_variable("SLURM_JOB_END_TIME")  # since 1970
    restart_count = number_variable("SLURM_RESTART_COUNT")
    array_job_id = text_variable("SLURM_ARRAY_JOB_ID")
    array_task_id = text_variable("SLURM_ARRAY_TASK_ID")
    # GPUs
    gpu_binding = Variable(
        "SLURMD_TRES_BIND", parse_gpu_binding, "how srun binds tasks to GPUs, such as gpu:closest"
    )
    gpus_on_node = number_variable("SLURM_GPUS_ON_NODE")
    job_gpus = text_variable("SLURM_JOB_GPUS")
    step_gpus = text_variable("SLURM_STEP_GPUS")
    shards_on_node = text_variable("SLURM_SHARDS_ON_NODE")

    # Of this package, set by the user: "off" trains alone
    resolver_switch = Variable("SLURM_RESOLVER", parse_switch, "on or off")
    network_grace = number_variable("SLURM_RESOLVER_NETWORK_GRACE", 1, 86_400)
    start_timeout = number_variable("SLURM_RESOLVER_START_TIMEOUT", 1, 604_800)
    stall_seconds = number_variable("SLURM_RESOLVER_STALL_SECONDS", 0, 604_800)
    # whether a training says at its end where the time went
    usage_report = Variable("SLURM_RESOLVER_REPORT", parse_switch, "on or off")
    # how many steps are compared with one process
    verified_steps = number_variable("SLURM_RESOLVER_VERIFY")
    # set by `slurm-resolver run`, whose jobs are unknown to Slurm
    simulated_job = text_variable("SLURM_RESOLVER_JOB")
    # set by a task that had to ask the others, for its child processes
    exchanged_layout = text_variable("SLURM_RESOLVER_LAYOUT")
    # set by a resolver that has set the GPU variables of its task
    gpus_applied = text_variable("SLURM_RESOLVER_GPUS")
    # set by `supervise` for a step that it has started again
    step_restart = number_variable("SLURM_RESOLVER_STEP_RESTART")

    # Of launchers; only the ranks of an mpirun have them: mpirun(1) of Open MPI, and live runs of
    # MPICH
    openmpi_local_rank = text_variable("OMPI_COMM_WORLD_LOCAL_RANK")
    mpich_local_rank = text_variable("MPI_LOCALRANKID")
    # NVIDIA's and AMD's; Slurm sets them as well
    cuda_devices = devices_variable("CUDA_VISIBLE_DEVICES")
    rocr_devices = devices_variable("ROCR_VISIBLE_DEVICES")
    hip_devices = devices_variable("HIP_VISIBLE_DEVICES")
    ordinal_devices = devices_variable("GPU_DEVICE_ORDINAL")
    # TensorFlow's: whether it takes the memory of a GPU only as it needs it
    allow_growth = text_variable("TF_FORCE_GPU_ALLOW_GROWTH")

    components: tuple[Component, ...] = ()
    ancestors = Ancestors()
    is_component = False
    remains: tuple[str, ...] = ()

    def __init__(self, **values: Any) -> None:
        """Takes the values by field name; None means that a field is not set."""
        vars(self).update({name: value for name, value in values.items() if value is not None})

    def __eq__(self, other: object) -> bool:
        """Whether the other one has the same values."""
        return isinstance(other, SlurmStep) and vars(self) == vars(other)

    @classmethod
    def read(cls, environ: Environ | None = None) -> SlurmStep:
        """Reads the variables of `environ` (by default `os.environ`).

        Raises:
            UnreadableValueError: for a variable whose value cannot be used. A variable that is
                not set is None here; `require` makes it an error where it is needed.
        """
        if environ is None:
            environ = os.environ
        values = {
            variable.field: variable.parse(environ[name])
            for name in environ  # most variables are not set, and os.environ is slow to say so
            if (variable := VARIABLES.get(name))
        }
        step = cls(**values)
        if step.het_job_id not in (None, step.job_id):
            step = step.replace(het_size=None)  # inherited from the job that submitted this one
        if step.het_size:
            step = step.replace(
                components=tuple(_component(environ, group) for group in range(step.het_size))
            )
        if environ is not os.environ:
            return step.replace(task_pid=None)  # this process is not the task
        # Without SLURM_TASK_PID the variables of a step were copied from another process.
        if step.where == "step" and not step.is_live:
            return step
        # This process is the task itself.
        origin = find_ancestors(step.task_pid)
        several = (step.num_nodes or 1) > 1 and not step.het_size
        remains = set(filter(_SET_BY_SLURM.match, environ)) if origin.hidden else set()
        is_script = origin.step_id in ("batch", "interactive") and origin.job_id == step.job_id
        if is_script and step.where == "step":
            # The batch file of a job that was submitted from inside a step inherits its variables.
            step = step.replace(step_id=origin.step_id, num_tasks=None)
        return step.replace(
            ancestors=origin,
            is_component=several and is_component(step.node_name, step.name),
            remains=() if remains >= _IN_EVERY_JOB else tuple(sorted(remains)),
        )

    def replace(self, **values: Any) -> SlurmStep:
        """Returns a copy with other values in these fields; None unsets a field."""
        return SlurmStep(**{**vars(self), **values})

    def require(self, variable: Variable[Value]) -> Value:
        """Returns the value of a variable: ``step.require(SlurmStep.rank)``.

        Raises:
            EnvironmentValueError: if the variable is not set.
        """
        value: Value | None = getattr(self, variable.field)
        if value is None:
            raise EnvironmentValueError(
                f"{variable.name} is not set; expected {variable.expected}. srun sets it in every "
                "task: start this program with srun, or with `slurm-resolver run` where there is "
                "no Slurm."
            )
        return value

    @property
    def name(self) -> str:
        """The step's id as Slurm writes it: ``42.0``."""
        return f"{self.job_id or '?'}.{self.step_id or '?'}"

    @property
    def job_label(self) -> str | None:
        """The job's id in messages and commands: ``12_3`` for task 3 of the job array 12."""
        if self.array_job_id and self.array_task_id:
            return f"{self.array_job_id}_{self.array_task_id}"
        return self.job_id

    @property
    def components_in_step(self) -> list[Component]:
        """The components that have nodes in this step, each with these nodes.

        The result is [] if the step is not heterogeneous. ``srun --het-group=0,2`` starts a step on
        some of the job's components. A step on one component has the variables of a plain step.
        """
        nodes = set(self.nodes or ())
        components = [
            component._replace(nodes=hosts)
            for component in self.components
            if (hosts := tuple(host for host in component.nodes if host in nodes))
        ]
        return components if len(components) > 1 else []

    @property
    def where(self) -> str:
        """Where this process runs: in a "step", in an "allocation" without srun, or "none"."""
        if self.step_id in _STEP_IDS_WITHOUT_SRUN:
            return "allocation"
        if self.nodes or self.num_tasks:
            return "step"
        if self.job_id:
            return "allocation"
        return "none" if self.rank is None else "step"

    @property
    def launcher(self) -> str | None:
        """The launcher other than srun that started this process; None if none is known.

        mpirun starts a daemon on each node, inside Slurm by srun, and the daemon starts the ranks.
        A rank inherits Slurm's variables from the daemon or the batch script.
        """
        origin = self.ancestors
        if origin.launcher or origin.complete or self.simulated:
            return origin.launcher  # an mpirun's variables are inherited from elsewhere
        return "mpirun" if self.openmpi_local_rank or self.mpich_local_rank else None

    @property
    def is_live(self) -> bool:
        """Whether this process is the task itself, and can meet the other tasks.

        srun sets SLURM_TASK_PID in every task. A test or tool that copies a task's variables leaves
        it out.
        """
        return self.task_pid is not None

    @property
    def start_seconds(self) -> float:
        """How long the tasks of the step wait for each other at its start."""
        return self.start_timeout or Timeouts.start

    @property
    def simulated(self) -> bool:
        """Whether `slurm-resolver run` started this step, whose job is unknown to Slurm.

        A real step that is started from it inherits the variable, but has another job id.
        """
        return self.job_id is not None and self.job_id == self.simulated_job

    @property
    def is_for_one_task(self) -> bool:
        """Whether the allocation is for one task; Slurm's default is one task on each node."""
        tasks = self.job_num_tasks or self.job_tasks_per_node or 1
        return tasks * (self.job_num_nodes or 1) * (self.het_size or 1) == 1


# All variables by name.
VARIABLES = {
    variable.name: variable
    for variable in vars(SlurmStep).values()
    if isinstance(variable, Variable)
}


def _component(environ: Environ, group: int) -> Component:
    def read(prefix: str, variable: Variable[Value]) -> Value | None:
        # A direct `srun A : B` sets the PACK names.
        for name in (f"{prefix}_HET_GROUP_{group}", f"{prefix}_PACK_GROUP_{group}"):
            if name in environ:
                return variable.parse(environ[name], name)
        return None

    nodes = read("SLURM_JOB_NODELIST", SlurmStep.nodes)
    if not nodes:
        raise EnvironmentValueError(
            f"SLURM_HET_SIZE={environ['SLURM_HET_SIZE']}, but SLURM_JOB_NODELIST_HET_GROUP_{group} "
            f"is not set; expected the nodes of every component. {RESTART_HINT}"
        )
    return Component(
        group=group,
        nodes=nodes,
        distribution=read("SLURM_DISTRIBUTION", SlurmStep.distribution),
        plane_size=read("SLURM_DIST_PLANESIZE", SlurmStep.plane_size),
    )
