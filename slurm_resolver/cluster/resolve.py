"""`resolve` and `tf_config_from_slurm`: the cluster, from the variables of one task."""

from __future__ import annotations

from collections.abc import Collection

from slurm_resolver.cluster.addresses import (
    NODE_ADDRESS,
    JobAddresses,
    find_hosts,
    identity_of,
)
from slurm_resolver.cluster.alone import advise_on_lonely_step, why_alone
from slurm_resolver.cluster.cluster import Cluster
from slurm_resolver.cluster.layout import (
    Layout,
    layout_from_environment,
    nodes_and_counts,
    set_tasks_per_node,
    verify_layout,
)
from slurm_resolver.cluster.options import (
    ClusterOptions,
    HetGroups,
    JobCounts,
    LayoutChoice,
    NodeAddress,
    Placement,
    WorkerOrder,
)
from slurm_resolver.cluster.ports import choose_ports
from slurm_resolver.cluster.roles import assign_roles, job_counts
from slurm_resolver.cluster.task_gpus import choose_gpus
from slurm_resolver.coordination import ServiceAddress
from slurm_resolver.errors import NotInStepError, UnknownLayoutError
from slurm_resolver.log import warn_once
from slurm_resolver.slurm.step_variables import SlurmStep
from slurm_resolver.slurm.variable_types import Environ
from slurm_resolver.timeouts import Timeouts


def resolve(
    jobs: JobCounts | None = None,
    *,
    port_base: int | None = None,
    placement: Placement = "spread",
    worker_order: WorkerOrder = "ring",
    het_groups: HetGroups | None = None,
    node_address: NodeAddress | None = None,
    gpu_jobs: Collection[str] | None = None,
    layout: LayoutChoice = "auto",
    local: bool = False,
    environ: Environ | None = None,
) -> Cluster:
    """Returns the cluster of the Slurm step that this process belongs to.

    It changes nothing, unless the tasks have to exchange the layout: then it connects to the step's
    coordination service, and leaves the answer in SLURM_RESOLVER_LAYOUT.

    Args:
        jobs, port_base, placement, worker_order, het_groups, node_address, gpu_jobs, layout, local:
            the options of `SlurmClusterResolver`, which explains them.
        environ: the variables to read, by default `os.environ`. With any other mapping, such as the
            variables of another task, "auto" is "environment".

    Returns:
        The same tasks in every task of the step; `task`, the GPUs and `step` are those of this
        task. An empty cluster if `jobs` is None outside Slurm, so that a script runs unchanged
        without Slurm, and in an allocation for one task without srun.

    Raises:
        NotInStepError: for one of several tasks that has no rank: inside an allocation without
            srun, under another launcher, in a cleaned environment; with `jobs` outside Slurm.
        EnvironmentValueError: for a variable that is missing; an UnreadableValueError, which is a
            ValueError too, for a value that cannot be used.
        LayoutError: if it cannot be known where the ranks run.
        JobsError, AddressError: for arguments that do not fit the step.
        GpuError: for GPU variables that are not a list of devices, or show more than was granted.
    """
    return resolve_step(
        SlurmStep.read(environ),
        ClusterOptions(
            jobs=jobs,
            port_base=port_base,
            placement=placement,
            worker_order=worker_order,
            het_groups=het_groups,
            node_address=node_address,
            gpu_jobs=gpu_jobs,
            layout=layout,
            local=local,
        ),
    )


def tf_config_from_slurm(
    ps_number: int, port_number: int = 2222, *, environ: Environ | None = None
) -> tuple[JobAddresses, str, int]:
    """Returns ``(cluster, job name, task index)`` for ``tf.train.ClusterSpec`` and ``Server``.

    It can replace the function of this name that many training scripts have copied since 2017.

    A node's second task is a parameter server only if there are more parameter servers than nodes.
    The cluster is a dict from job name to addresses ``node:port``.

    Args:
        ps_number: the number of parameter servers, on the first nodes; the rest are workers.
        port_number: the first port on each node; the task with local rank i uses `port_number` + i.
        environ: the variables to read, by default `os.environ`.

    Raises:
        JobsError: if the step does not have `ps_number` tasks.
        SlurmResolverError: as in `slurm_resolver.resolve`.
    """
    cluster = resolve({"ps": ps_number, "worker": -1}, port_base=port_number, environ=environ)
    if not cluster.task:
        raise NotInStepError(
            "SLURM_RESOLVER=off: this process has no cluster. Unset the variable, and start the "
            "program with srun."
        )
    return cluster.jobs(), cluster.task.job, cluster.task.index


def resolve_step(step: SlurmStep, options: ClusterOptions) -> Cluster:
    """Returns the cluster of a step that was read, as `resolve` does."""
    options.check()
    reason = why_alone(step, options)
    if reason:
        warn_once(reason)
        return Cluster(step=step)
    advice = advise_on_lonely_step(step)
    if advice and step.is_live:
        warn_once(advice)
    if options.tasks_per_node is not None:
        step = set_tasks_per_node(step, options.tasks_per_node)
    nodes, counts = nodes_and_counts(step)
    num_tasks = sum(counts)
    jobs = job_counts(options.jobs, num_tasks)
    ports = choose_ports(step, max(counts), options.port_base)
    hosts = find_hosts(step, nodes, num_tasks, options)
    remedy = ""
    if not step.simulated:
        remedy = "; if a firewall between the nodes blocks the port, open it"
        if options.node_address != "slurm":  # else the address is Slurm's already
            remedy += NODE_ADDRESS
    # Slurm's variables decide which task has the service, as tasks that disagree on the layout have
    # to find each other too. Whether it is this one is known for sure with the layout.
    service = ServiceAddress(
        host=hosts[nodes[0]],
        port=ports.service_port,
        node=nodes[0],
        identity=identity_of(step),
        num_tasks=num_tasks,
        rank=step.require(SlurmStep.rank),
        hosts_service=(step.node_name, step.local_rank) == (nodes[0], 0),
        grace=step.network_grace or Timeouts.grace,
        remedy=remedy,
    )
    layout = _find_layout(step, options, service)
    roles = assign_roles(layout, jobs, options)
    # The lowest rank on the service's node has the service.
    host_rank = layout.node_of.index(layout.nodes.index(service.node))
    return Cluster(
        step=step,
        layout=layout,
        roles=roles,
        ports=ports,
        hosts=hosts,
        service=service._replace(hosts_service=service.rank == host_rank),
        gpu_decision=choose_gpus(step, layout, roles, options),
        options=options,
    )


def _find_layout(step: SlurmStep, options: ClusterOptions, service: ServiceAddress) -> Layout:
    """Returns the layout: from the variables, or exchanged by the tasks through the service."""
    reason = ""
    if options.layout != "rendezvous":
        may_meet = options.layout == "auto" and step.is_live
        try:
            layout = layout_from_environment(step)
            if options.tasks_per_node is not None:
                layout = layout._replace(source="tasks_per_node")
            verify_layout(layout, step)
            if layout.unambiguous or not may_meet:
                return layout
        except UnknownLayoutError as error:
            if not may_meet:
                raise
            reason = f"{error} "
    from slurm_resolver.cluster.layout_exchange import exchange_layout  # few steps need it

    layout = exchange_layout(step, service, options.until, reason)
    verify_layout(layout, step)
    return layout
