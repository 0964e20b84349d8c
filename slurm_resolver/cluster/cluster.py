"""The resolved cluster, and `resolve`, which runs every step from the environment to it."""

from __future__ import annotations

import functools
import os
from typing import (
    Any,
    Collection,
    Dict,
    Iterator,
    List,
    Mapping,
    NamedTuple,
    Optional,
    Sequence,
    Tuple,
)

from slurm_resolver.cluster.gpus import Gpus, NodeGpus, choose_gpus, gpu_users
from slurm_resolver.cluster.layout import Layout, check, lay_out
from slurm_resolver.cluster.node_address import NodeAddress, check_addresses, host_for
from slurm_resolver.cluster.ports import choose_ports
from slurm_resolver.cluster.roles import assign_roles
from slurm_resolver.cluster.tasks import Task, Tasks, addresses_by_job
from slurm_resolver.errors import (
    LayoutError,
    NotInStepError,
    UnknownLayoutError,
)
from slurm_resolver.log import warn
from slurm_resolver.slurm.step import Environ, SlurmStep

LAYOUTS = ("auto", "environment", "rendezvous")

_said_local = False

# TensorFlow starts no server for the evaluator, and waits for one that is in the spec.
_OUTSIDE_SPEC = ("evaluator",)


class Cluster(NamedTuple):
    """All tasks of a step, by rank, with job, index and address; and what is this task's own.

    Outside Slurm it is empty: no tasks, and `task` is None.

    Attributes:
        tasks: every task of the step, ``tasks[rank]``.
        task: this process's own; None where there is none, as in a plan made from options.
        gpu_decision: the GPUs of this task and why those; None where there is no `task`.
        job_id, step_id: Slurm's ids, None where they are not set.
        distribution: the one that placed the tasks.
        layout_source, ports_source: where each decision comes from.
        meeting_port: one more port, for the tasks to meet at.
        neighbours: the tasks on this task's node, as far as their GPUs go.
    """

    tasks: Sequence[Task] = ()
    task: Optional[Task] = None
    gpu_decision: Optional[Gpus] = None
    job_id: Optional[str] = None
    step_id: Optional[str] = None
    distribution: Optional[str] = None
    layout_source: Optional[str] = None
    ports_source: Optional[str] = None
    meeting_port: Optional[int] = None
    neighbours: Optional[NodeGpus] = None

    def __repr__(self) -> str:
        """Returns what one wants to see of it in a log; `tasks` may be many."""
        return (
            f"Cluster(step {self.job_id}.{self.step_id}: {self.tasks!r}, task={self.task!r}, "
            f"gpus={self.gpus!r})"
        )

    def node_gpus(self) -> Dict[int, Gpus]:
        """Returns by rank the decisions of all tasks on this task's node; {} without a task."""
        return self.neighbours.decisions() if self.neighbours else {}

    @property
    def gpus(self) -> Optional[Tuple[str, ...]]:
        """This task's GPUs as CUDA_VISIBLE_DEVICES names them; () for none.

        None where the environment says nothing about GPUs.
        """
        return self.gpu_decision.devices if self.gpu_decision else None

    def jobs(self) -> Dict[str, List[str]]:
        """Returns the addresses of each job by index, in alphabetical order of the job names.

        The evaluator is not among them: TensorFlow keeps it outside the cluster.
        """
        return {
            job: addresses
            for job, addresses in addresses_by_job(self.tasks).items()
            if job not in _OUTSIDE_SPEC
        }

    def tf_config(self) -> Dict[str, Any]:
        """Returns what TF_CONFIG holds for this task, as a dict; {} for an empty cluster."""
        if not self.tasks:
            return {}
        config: Dict[str, Any] = {"cluster": self.jobs()}
        if self.task is not None:
            config["task"] = {"type": self.task.job, "index": self.task.index}
        return config

    def to_dict(self) -> Dict[str, Any]:
        """Returns the cluster as plain values: what ``slurm-resolver show --json`` prints."""
        return {**self._facts(), "tasks": [task._asdict() for task in self.tasks]}

    def iter_json(self) -> Iterator[str]:
        """Yields, in pieces, exactly ``json.dumps(self.to_dict())``, in a fraction of its time."""
        import json

        if isinstance(self.tasks, Tasks):
            yield f'{json.dumps(self._facts())[:-1]}, "tasks": '
            yield from self.tasks.iter_json()
            yield "}"
        else:
            yield json.dumps(self.to_dict())

    def _facts(self) -> Dict[str, Any]:
        own = None
        if self.task is not None:
            own = {
                "rank": self.task.rank,
                "job": self.task.job,
                "index": self.task.index,
                "gpus": None if self.gpus is None else list(self.gpus),
                "gpus_source": self.gpu_decision.source if self.gpu_decision else None,
            }
        return {
            "job_id": self.job_id,
            "step_id": self.step_id,
            "distribution": self.distribution,
            "layout_source": self.layout_source,
            "ports_source": self.ports_source,
            "self": own,
        }


def resolve(
    jobs: Optional[Mapping[str, int]] = None,
    *,
    port_base: Optional[int] = None,
    placement: str = "spread",
    worker_order: str = "ring",
    het_groups: Optional[Mapping[str, int]] = None,
    node_address: Optional[NodeAddress] = None,
    gpu_jobs: Optional[Collection[str]] = None,
    layout: str = "auto",
    environ: Optional[Environ] = None,
) -> Cluster:
    """Returns the cluster of the Slurm step that this process is a task of. Changes nothing.

    Args:
        jobs: counts by job name (chief, worker, ps, evaluator), summing to the tasks of the step;
            one may be -1, the rest. None makes every task a worker.
        port_base: the first port on each node; task i of a node gets ``port_base + i``. None
            takes the ports that Slurm reserved for the step, or derives them from its ids.
        placement: "spread" puts parameter servers on distinct nodes, evenly and away from the
            chief's; "rank" deals ranks to jobs exactly as TensorFlow's own resolver does.
        worker_order: "ring" numbers the workers such that TensorFlow's ring of collectives leaves
            every node once; that is by rank, as "rank" always is, with up to 10 workers in block
            placement or with one task a node. See `slurm_resolver.cluster.ring_order`.
        het_groups: by job name, the component of a heterogeneous step to take its tasks from.
        node_address: from node name to the host that others connect to: a mapping, a callable, or
            a suffix such as "-ib0".
        gpu_jobs: the jobs whose tasks use GPUs. None: all but parameter servers and, beside
            these, the chief, which then is the coordinator of a ParameterServerStrategy.
        layout: "environment" takes the layout from the variables alone. "rendezvous" lets the
            tasks tell each other where they run, over TCP; all tasks of the step must ask for it.
            "auto" does that where the variables do not tell.
        environ: the variables to read, by default `os.environ`; with others, as another task has
            them, "auto" is "environment".

    Returns:
        The same `Cluster` in every task, but for `task` and `gpus`. An empty one where there is
        no Slurm and `jobs` is None, so that a script runs unchanged without it.

    Raises:
        NotInStepError: inside an allocation but not under srun, or without Slurm with `jobs`.
        EnvironmentValueError: for a variable that is missing or makes no sense.
        LayoutError: where it cannot be known where the ranks run.
        JobsError, AddressError: for arguments that do not fit the step.
    """
    step = SlurmStep.read(os.environ if environ is None else environ)
    if layout == "auto" and environ is not None and environ is not os.environ:
        layout = "environment"  # another task's variables: it is not this process that could meet
    if step.place == "allocation":
        raise step.not_in_step()
    if step.place == "none":
        return without_slurm(jobs)
    return build_cluster(
        step,
        find_layout(step, layout, port_base, node_address),
        jobs,
        port_base=port_base,
        placement=placement,
        worker_order=worker_order,
        het_groups=het_groups,
        node_address=node_address,
        gpu_jobs=gpu_jobs,
    )


def find_layout(
    step: SlurmStep,
    how: str = "auto",
    port_base: Optional[int] = None,
    node_address: Optional[NodeAddress] = None,
) -> Layout:
    """Returns the layout, from the variables or from what the tasks tell each other.

    The arguments are those of `resolve`.
    """
    if how not in LAYOUTS:
        expected = ", ".join(map(repr, LAYOUTS))
        raise LayoutError(f"layout={how!r}: expected one of {expected}.")
    reason = ""
    if how != "rendezvous":
        # Variables that were copied from a task, as tests and tools do, have nobody behind them.
        alone = how == "environment" or step.task_pid is None
        try:
            layout = lay_out(step)
            check(layout, step)
            if layout.certain or alone:
                return layout
        except UnknownLayoutError as error:
            if alone:
                raise
            reason = f"{error} "
    from slurm_resolver.cluster.layout_exchange import (
        layout_by_meeting,  # asyncio: most never need it
    )

    host_of = functools.partial(host_for, node_address=node_address)
    try:
        layout = layout_by_meeting(step, port_base, host_of)
    except LayoutError as error:
        raise LayoutError(f"{reason}{error}") from error
    check(layout, step)
    return layout


def without_slurm(jobs: Optional[Mapping[str, int]]) -> Cluster:
    """Returns the empty cluster of a process outside Slurm, and says so once in the log."""
    if jobs is not None:
        raise NotInStepError(
            f"jobs={dict(jobs)!r}, but there is no Slurm here (neither SLURM_PROCID nor SLURM_JOB_"
            "ID is set). Start the program with srun; or on this machine alone with "
            f"`slurm-resolver run -n {_tasks(jobs)} -- python your_script.py`."
        )
    global _said_local
    if not _said_local:
        warn("no Slurm here: this process trains alone, without a cluster")
        _said_local = True
    return Cluster()


def build_cluster(
    step: SlurmStep,
    layout: Layout,
    jobs: Optional[Mapping[str, int]] = None,
    *,
    port_base: Optional[int] = None,
    placement: str = "spread",
    worker_order: str = "ring",
    het_groups: Optional[Mapping[str, int]] = None,
    node_address: Optional[NodeAddress] = None,
    gpu_jobs: Optional[Collection[str]] = None,
    gpus_per_node: Optional[int] = None,
    gpus_per_task: Optional[int] = None,
) -> Cluster:
    """Returns the cluster for a layout: the jobs, the ports, the addresses, this task's GPUs.

    The arguments are those of `resolve` and, for the GPUs, of TensorFlow's resolver.
    """
    roles = assign_roles(layout, jobs, placement, worker_order, het_groups)
    most_on_a_node = max(layout.local_of) + 1
    ports = choose_ports(step, most_on_a_node, port_base)
    hosts: Sequence[str] = layout.nodes
    if node_address is not None:
        hosts = [host_for(node, node_address) for node in layout.nodes]
    tasks = Tasks(layout, roles, hosts, [f":{port}" for port in ports.by_local_id])
    check_addresses(tasks, hosts)
    using = gpu_users(roles.ranks, gpu_jobs)
    if gpu_jobs is None and (gpus_per_node is not None or gpus_per_task is not None):
        using = set(roles.ranks)  # explicit counts are for every task, as TensorFlow deals them
    task = None
    neighbours = None
    gpus = None
    if step.procid is not None:
        task = tasks.own(step.procid)
        there = layout.ranks_on(layout.node_of[task.rank])
        on_node = [layout.local_of[rank] for rank in there if roles.job(rank) in using]
        counts_given = (most_on_a_node, gpus_per_node, gpus_per_task)
        gpus = choose_gpus(step, task.local_rank, on_node, *counts_given)
        neighbours = NodeGpus(step, gpus, there, on_node, counts_given)
    return Cluster(
        tasks=tasks,
        task=task,
        gpu_decision=gpus,
        neighbours=neighbours,
        job_id=step.job_id,
        step_id=step.step_id,
        distribution=layout.distribution,
        layout_source=layout.source,
        ports_source=ports.source,
        meeting_port=ports.meeting,
    )


def _tasks(jobs: Mapping[str, int]) -> int:
    return max(1, sum(abs(count) for count in jobs.values() if isinstance(count, int)))
