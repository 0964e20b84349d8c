"""`resolve`: computes the cluster from the variables of one task."""

from __future__ import annotations

import os
from collections import Counter
from typing import Collection, Mapping, Optional, Sequence

from slurm_resolver.cluster.alone import find_alone
from slurm_resolver.cluster.cluster import Cluster
from slurm_resolver.cluster.data_service import DATA_JOBS
from slurm_resolver.cluster.gpu_plan import NodeGpuPlan, jobs_with_gpus
from slurm_resolver.cluster.gpus import choose_gpus
from slurm_resolver.cluster.job_counts import job_counts
from slurm_resolver.cluster.layout import (
    Layout,
    layout_from_environment,
    nodes_and_counts,
    verify_layout,
)
from slurm_resolver.cluster.node_address import NodeAddress, check_addresses
from slurm_resolver.cluster.options import LAYOUTS, ClusterOptions, LayoutChoice
from slurm_resolver.cluster.ports import choose_ports
from slurm_resolver.cluster.roles import Placement, WorkerOrder, assign_roles
from slurm_resolver.cluster.service_address import service_of_layout
from slurm_resolver.cluster.slurm_addresses import with_addresses
from slurm_resolver.cluster.tasks import Tasks
from slurm_resolver.errors import LayoutError, UnknownLayoutError
from slurm_resolver.slurm.step import SlurmStep
from slurm_resolver.slurm.variable import Environ


def resolve(
    jobs: Optional[Mapping[str, int]] = None,
    *,
    port_base: Optional[int] = None,
    placement: Placement = "spread",
    worker_order: WorkerOrder = "ring",
    het_groups: Optional[Mapping[str, int]] = None,
    node_address: Optional[NodeAddress] = None,
    gpu_jobs: Optional[Collection[str]] = None,
    layout: LayoutChoice = "auto",
    local: bool = False,
    environ: Optional[Environ] = None,
) -> Cluster:
    """Returns the cluster of the Slurm step that this process belongs to.

    It changes nothing, except where the tasks have to tell each other where they run: then it
    connects to the step's coordination service, and leaves the answer in SLURM_RESOLVER_LAYOUT.

    Args:
        jobs: number of tasks by job name: chief, worker, ps, evaluator; dispatcher and data_worker,
            a tf.data service; or a name of your own, with which TensorFlow's strategies do not
            work, but its servers do. They sum to the tasks of the step; one may be -1, the rest.
            None makes every task a worker.
        port_base: the first port on each node; the task with local rank i gets ``port_base + i``.
            None takes the ports that Slurm reserved for the step, or derives them from its ids;
            8888 where it has none.
        placement: "spread" puts parameter servers on different nodes, evenly and away from the
            chief's, and the tasks of a tf.data service where they leave as many others on each
            node; "rank" assigns ranks to jobs exactly as TensorFlow's own resolver does.
        worker_order: "ring" numbers the workers such that TensorFlow's ring of collectives leaves
            every node once; "rank" numbers them by rank, as TensorFlow's own resolver does. The two
            are the same with up to 10 workers in block placement, and with one task on each node.
            See `slurm_resolver.cluster.ring_order`.
        het_groups: by job name, the component of a heterogeneous step to take its tasks from. None
            gives jobs their ranks as in any other step.
        node_address: from a node's name to the host that others connect to: a mapping, a callable,
            or a suffix such as "-ib0". With "slurm" each task asks Slurm once for the addresses of
            the nodes, which works where their names do not resolve. None takes the names.
        gpu_jobs: the jobs whose tasks use GPUs. None: all but the parameter servers, the tasks of a
            tf.data service, and the chief where there are parameter servers, as it then only
            coordinates.
        layout: where to learn which rank runs on which node. "environment" computes it from the
            variables alone. With "rendezvous" the tasks tell each other over TCP where they run;
            all tasks of the step must choose it. "auto" does that where the variables do not
            describe the layout.
        local: True trains alone, without a cluster, wherever this process runs; so does the
            variable SLURM_RESOLVER=off.
        environ: the variables to read, by default `os.environ`. With any other mapping, as with the
            variables of another task, "auto" is "environment".

    Returns:
        The same tasks in every task of the step; `task`, the GPUs and `step` are those of this
        task. An empty cluster if `jobs` is None outside Slurm, so that a script runs unchanged
        without Slurm, and in an allocation for one task without srun.

    Raises:
        NotInStepError: for one of several tasks that has no rank: inside an allocation without
            srun, under another launcher, in a cleaned environment; with `jobs` outside Slurm.
        EnvironmentValueError: for a variable that is missing; an UnreadableValueError, which is a
            ValueError too, for one whose value cannot be used.
        LayoutError: where it cannot be known where the ranks run.
        JobsError, AddressError: for arguments that do not fit the step.
        GpuError: for GPU variables that are not a list of devices, or show more than was granted.
    """
    if layout == "auto" and environ is not None and environ is not os.environ:
        layout = "environment"  # this process cannot meet in place of another task
    options = ClusterOptions(
        jobs, port_base, placement, worker_order, het_groups, node_address, gpu_jobs, layout
    )._replace(local=local)
    return resolve_step(SlurmStep.read(environ), options)


def resolve_step(step: SlurmStep, options: ClusterOptions) -> Cluster:
    """Returns the cluster of a step, as `resolve` does."""
    alone = find_alone(step, options)
    if alone is not None:
        return alone
    if step.num_tasks is not None:
        job_counts(options.jobs, step.num_tasks)  # what does not fit is known before any meeting
    return build_cluster(step, find_layout(step, options), options)


def find_layout(step: SlurmStep, options: ClusterOptions, source: str = "environment") -> Layout:
    """Returns the layout: from the variables, or from what the tasks tell each other.

    `source` names what took the place of a variable in every task, such as an argument.
    """
    if options.layout not in LAYOUTS:
        expected = ", ".join(map(repr, LAYOUTS))
        raise LayoutError(f"layout={options.layout!r}: expected one of {expected}.")
    reason = ""
    if options.layout != "rendezvous":
        may_meet = options.layout == "auto" and step.is_live
        try:
            layout = layout_from_environment(step, source)
            verify_layout(layout, step)
            if layout.unambiguous or not may_meet:
                return layout
        except UnknownLayoutError as error:
            if not may_meet:
                raise
            reason = f"{error} "
    from slurm_resolver.cluster.layout_exchange import exchange_layout  # few steps need it

    nodes, counts = nodes_and_counts(step)
    options = with_addresses(step, nodes, sum(counts), options)
    try:
        layout = exchange_layout(step, options.port_base, options.host_of, options.meeting_seconds)
    except LayoutError as error:
        raise LayoutError(f"{reason}{error}") from error
    verify_layout(layout, step)
    return layout


def build_cluster(step: SlurmStep, layout: Layout, options: ClusterOptions) -> Cluster:
    """Returns the cluster for a layout: with jobs, ports, addresses, and this task's GPUs."""
    options = with_addresses(step, layout.nodes, layout.num_tasks, options)
    roles = assign_roles(
        layout, options.jobs, options.placement, options.worker_order, options.het_groups
    )
    max_tasks_per_node = max(layout.local_rank_of) + 1
    by_component = [max(layout.local_rank_of[c.start : c.stop]) + 1 for c in layout.components]
    ports = choose_ports(step, max_tasks_per_node, options.port_base, by_component)
    hosts: Sequence[str] = layout.nodes
    if options.node_address is not None:
        hosts = list(map(options.host_of, layout.nodes))
    tasks = Tasks(layout, roles, hosts, ports)
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
    gpu_jobs = jobs_with_gpus(roles.ranks, options.gpu_jobs, options.jobs or ())
    counts_given = options.gpus_per_node is not None or options.gpus_per_task is not None
    if options.gpu_jobs is None and counts_given:
        # as in TensorFlow's resolver, the counts are for every task, which knows no others
        gpu_jobs = set(roles.ranks) - set(DATA_JOBS)
    uncounted = {
        rank for job in DATA_JOBS if job not in gpu_jobs for rank in roles.ranks.get(job, ())
    }
    most_counted = _max_tasks_per_node(layout, uncounted) if uncounted else max_tasks_per_node
    task = tasks.find_one(step.rank)
    ranks_on_node = layout.ranks_on(layout.node_of[task.rank])
    gpu_local_ranks = [
        layout.local_rank_of[rank] for rank in ranks_on_node if roles.find_job(rank) in gpu_jobs
    ]
    not_counted = [layout.local_rank_of[rank] for rank in ranks_on_node if rank in uncounted]
    counts = (most_counted, options.gpus_per_node, options.gpus_per_task)
    gpus = choose_gpus(
        step,
        task.local_rank,
        gpu_local_ranks,
        *counts,
        not_counted=not_counted,
    )
    return cluster._replace(
        task=task,
        gpu_decision=gpus,
        node_gpus=NodeGpuPlan(step, gpus, ranks_on_node, gpu_local_ranks, counts, not_counted),
        service=service_of_layout(step, layout, ports.meeting_port, options.host_of),
    )


def _max_tasks_per_node(layout: Layout, without: Collection[int]) -> int:
    nodes = (node for rank, node in enumerate(layout.node_of) if rank not in without)
    return max(Counter(nodes).values())
