"""`resolve`: every step of the way from a task's variables to the cluster."""

from __future__ import annotations

import functools
import os
from typing import Callable, Collection, Mapping, NamedTuple, Optional, Sequence

from slurm_resolver.cluster.cluster import Cluster
from slurm_resolver.cluster.gpus import NodeGpus, choose_gpus, jobs_with_gpus
from slurm_resolver.cluster.layout import Layout, layout_from_environment, verify_layout
from slurm_resolver.cluster.meeting_point import rendezvous_of_layout
from slurm_resolver.cluster.node_address import NodeAddress, check_addresses, host_for
from slurm_resolver.cluster.ports import choose_ports
from slurm_resolver.cluster.roles import assign_roles
from slurm_resolver.cluster.tasks import Tasks
from slurm_resolver.errors import LayoutError, NotInStepError, UnknownLayoutError
from slurm_resolver.log import warn_once
from slurm_resolver.slurm.step import SlurmStep
from slurm_resolver.slurm.variable import Environ

LAYOUTS = ("auto", "environment", "rendezvous")


class ClusterOptions(NamedTuple):
    """Everything that a caller may say of the cluster; `resolve` tells what each means.

    The last two are of TensorFlow's own resolver, and of the class that stands in for it.
    """

    jobs: Optional[Mapping[str, int]] = None
    port_base: Optional[int] = None
    placement: str = "spread"
    worker_order: str = "ring"
    het_groups: Optional[Mapping[str, int]] = None
    node_address: Optional[NodeAddress] = None
    gpu_jobs: Optional[Collection[str]] = None
    layout: str = "auto"
    gpus_per_node: Optional[int] = None
    gpus_per_task: Optional[int] = None

    @property
    def host_of(self) -> Callable[[str], str]:
        """From a node's name to the host that others connect to."""
        return functools.partial(host_for, node_address=self.node_address)


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
            chief's; "rank" gives ranks to jobs exactly as TensorFlow's own resolver does.
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
        The same `Cluster` in every task, but for what is the task's own. An empty one where there
        is no Slurm and `jobs` is None, so that a script runs unchanged without it.

    Raises:
        NotInStepError: inside an allocation but not under srun, or without Slurm with `jobs`.
        EnvironmentValueError: for a variable that is missing or makes no sense.
        LayoutError: where it cannot be known where the ranks run.
        JobsError, AddressError: for arguments that do not fit the step.
        GpuError: for GPU variables that are no list of devices, or show more than was granted.
    """
    if layout == "auto" and environ is not None and environ is not os.environ:
        layout = "environment"  # another task's variables: this process cannot meet in its place
    options = ClusterOptions(
        jobs, port_base, placement, worker_order, het_groups, node_address, gpu_jobs, layout
    )
    return resolve_step(SlurmStep.read(environ), options)


def resolve_step(step: SlurmStep, options: ClusterOptions) -> Cluster:
    """Returns the cluster of a step, as `resolve` does."""
    if step.place == "allocation":
        raise step.not_in_step()
    if step.place == "none":
        return empty_cluster(step, options)
    return build_cluster(step, find_layout(step, options), options)


def find_layout(step: SlurmStep, options: ClusterOptions) -> Layout:
    """Returns the layout, from the variables or from what the tasks tell each other."""
    if options.layout not in LAYOUTS:
        expected = ", ".join(map(repr, LAYOUTS))
        raise LayoutError(f"layout={options.layout!r}: expected one of {expected}.")
    reason = ""
    if options.layout != "rendezvous":
        may_meet = options.layout == "auto" and step.is_live
        try:
            layout = layout_from_environment(step)
            verify_layout(layout, step)
            if layout.unambiguous or not may_meet:
                return layout
        except UnknownLayoutError as error:
            if not may_meet:
                raise
            reason = f"{error} "
    from slurm_resolver.cluster.layout_exchange import exchange_layout  # most never need it

    try:
        layout = exchange_layout(step, options.port_base, options.host_of)
    except LayoutError as error:
        raise LayoutError(f"{reason}{error}") from error
    verify_layout(layout, step)
    return layout


def empty_cluster(step: SlurmStep, options: ClusterOptions) -> Cluster:
    """Returns the empty cluster of a process outside Slurm, and says so once in the log.

    Raises:
        NotInStepError: where jobs were asked for, which need tasks.
    """
    jobs = options.jobs
    if jobs is not None:
        tasks = sum(abs(count) for count in jobs.values() if isinstance(count, int))
        raise NotInStepError(
            f"jobs={dict(jobs)!r}, but there is no Slurm here (neither SLURM_PROCID nor SLURM_JOB_"
            "ID is set). Start the program with srun; or on this machine alone with "
            f"`slurm-resolver run -n {max(1, tasks)} -- python your_script.py`."
        )
    warn_once("no Slurm here: this process trains alone, without a cluster")
    return Cluster(step=step)


def build_cluster(step: SlurmStep, layout: Layout, options: ClusterOptions) -> Cluster:
    """Returns the cluster for a layout: the jobs, the ports, the addresses, this task's GPUs."""
    roles = assign_roles(
        layout, options.jobs, options.placement, options.worker_order, options.het_groups
    )
    most_on_a_node = max(layout.local_rank_of) + 1
    ports = choose_ports(step, most_on_a_node, options.port_base)
    hosts: Sequence[str] = layout.nodes
    if options.node_address is not None:
        hosts = list(map(options.host_of, layout.nodes))
    tasks = Tasks(layout, roles, hosts, [f":{port}" for port in ports.by_local_rank])
    check_addresses(tasks, hosts)
    cluster = Cluster(
        tasks=tasks,
        distribution=layout.distribution,
        layout_source=layout.source,
        ports_source=ports.source,
        step=step,
    )
    if step.rank is None:
        return cluster
    using = jobs_with_gpus(roles.ranks, options.gpu_jobs)
    counts_given = options.gpus_per_node is not None or options.gpus_per_task is not None
    if options.gpu_jobs is None and counts_given:
        using = set(roles.ranks)  # explicit counts are for every task, as TensorFlow takes them
    task = tasks.own(step.rank)
    ranks_there = layout.ranks_on(layout.node_of[task.rank])
    gpu_local_ranks = [
        layout.local_rank_of[rank] for rank in ranks_there if roles.job(rank) in using
    ]
    counts = (most_on_a_node, options.gpus_per_node, options.gpus_per_task)
    gpus = choose_gpus(step, task.local_rank, gpu_local_ranks, *counts)
    return cluster._replace(
        task=task,
        gpu_decision=gpus,
        node_gpus=NodeGpus(step, gpus, ranks_there, gpu_local_ranks, counts),
        rendezvous=rendezvous_of_layout(step, layout, ports.meeting, options.host_of),
    )
