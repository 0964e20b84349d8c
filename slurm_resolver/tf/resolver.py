"""`SlurmClusterResolver`: the resolved cluster, as TensorFlow's distribute API asks for it.

The constructor reads Slurm's variables, computes the cluster from them, selects this task's GPUs,
and joins the tasks that serve others. The methods return the results.
"""

from __future__ import annotations

import os
from collections.abc import Collection

import tensorflow as tf

from slurm_resolver.cluster.cluster import Cluster
from slurm_resolver.cluster.options import (
    ClusterOptions,
    HetGroups,
    JobCounts,
    LayoutChoice,
    NodeAddress,
    Placement,
    TasksPerNode,
    WorkerOrder,
)
from slurm_resolver.cluster.resolve import resolve_step
from slurm_resolver.errors import LayoutError
from slurm_resolver.log import tell_once
from slurm_resolver.slurm.step_variables import SlurmStep
from slurm_resolver.start.proxy import connect_directly
from slurm_resolver.start.ready import wait_until_ready
from slurm_resolver.tf.gpus import count_gpus, show_gpus
from slurm_resolver.tf.server import join, serve

# The private methods of TensorFlow's resolver that its subclasses may override:
# tensorflow/python/distribute/cluster_resolver/slurm_cluster_resolver.py.
HOOKS = (
    "_resolve_own_rank",
    "_resolve_num_tasks",
    "_resolve_hostlist",
    "_resolve_task_configuration",
)


class SlurmClusterResolver(tf.distribute.cluster_resolver.ClusterResolver):  # type: ignore[misc]
    """Resolves the cluster of a Slurm step for tf.distribute and tf.compat.v1.train.Server.

    A drop-in replacement for ``tf.distribute.cluster_resolver.SlurmClusterResolver``: it has the
    same constructor, attributes and methods. Start the script with srun, and pass the resolver to a
    strategy::

        resolver = SlurmClusterResolver()
        strategy = tf.distribute.MultiWorkerMirroredStrategy(cluster_resolver=resolver)

    ``print(resolver)`` shows the cluster. In each of these cases it is empty, and TensorFlow trains
    locally: with ``local=True``; with SLURM_RESOLVER=off; and, if `jobs` is None, without Slurm, or
    in an allocation of one task without srun. With `jobs`, the last two raise a NotInStepError.

    Only the constructor changes the process:

    - If Slurm left open which GPUs belong to this task, it sets CUDA_VISIBLE_DEVICES
      (on AMD's GPUs ROCR_VISIBLE_DEVICES) and SLURM_RESOLVER_GPUS, and if tasks share a GPU,
      TF_FORCE_GPU_ALLOW_GROWTH. Create the resolver before TensorFlow looks at the devices.
    - If a proxy is set, it adds the tasks' hosts to no_grpc_proxy: gRPC would use it for them.
    - If the tasks have to exchange the layout, it sets SLURM_RESOLVER_LAYOUT for child processes.
    - In a step, it makes tf.config.experimental_connect_to_cluster raise a JobsError where that
      would wait without end.
    - With a ps job, a thread holds a connection to the step's coordination service until the
      process ends. It sets GRPC_FAIL_FAST unless that is set, and in a chief it changes
      TensorFlow's ClusterCoordinator, which would wait for lost workers without end.
    """

    def __init__(
        self,
        jobs: JobCounts | None = None,
        port_base: int | None = None,
        gpus_per_node: int | None = None,
        gpus_per_task: int | None = None,
        tasks_per_node: TasksPerNode | None = None,
        auto_set_gpu: bool = True,
        rpc_layer: str | None = "grpc",
        *,
        placement: Placement = "spread",
        worker_order: WorkerOrder = "ring",
        het_groups: HetGroups | None = None,
        node_address: NodeAddress | None = None,
        gpu_jobs: Collection[str] | None = None,
        layout: LayoutChoice = "auto",
        local: bool = False,
    ) -> None:
        """Resolves the cluster.

        Args:
            jobs: number of tasks by job name: chief, worker, ps, evaluator, or names of your own
                for TensorFlow's servers. They must sum to the tasks of the step; one may be -1, for
                the rest. None makes every task a worker.
            port_base: the first port on each node; the task with local rank i gets
                ``port_base + i``. None: use the ports that Slurm reserved for the step, or derive
                them from its ids; 8888 without either.
            gpus_per_node: GPUs on each node; None: use Slurm's value.
            gpus_per_task: GPUs of each task; None shares a node's GPUs among its tasks. With either
                number, all tasks use GPUs, as in TensorFlow's resolver, unless `gpu_jobs` is given.
            tasks_per_node: tasks on every node, or by node name; None: use Slurm's value.
            auto_set_gpu: whether to set the variables that show this process its GPUs.
            rpc_layer: TensorFlow's protocol, the prefix of addresses: ``grpc://n1:8888``.
            placement: "spread" puts parameter servers on different nodes, evenly and away from the
                chief's; "rank" assigns ranks to jobs exactly as TensorFlow's own resolver does.
            worker_order: "ring" numbers the workers such that TensorFlow's ring of collectives
                enters and leaves each node only once; "rank" numbers them by rank, as TensorFlow's
                resolver does.
            het_groups: by job name, the component of a heterogeneous step to take its tasks from.
            node_address: the host to connect to, by node name: a mapping, a callable, or a suffix
                such as "-ib0". "slurm" asks Slurm for the addresses, once in each task: use it if
                names do not resolve. None: use the node names.
            gpu_jobs: the jobs whose tasks use GPUs. None: all but the parameter servers and, beside
                them, the chief, which then only coordinates.
            layout: "environment" computes from the variables alone which rank runs on which node.
                With "rendezvous" the tasks tell each other over TCP; all tasks of the step must
                choose it. "auto" does that if the variables do not describe the layout.
            local: True trains alone, without a cluster, as does the variable SLURM_RESOLVER=off.

        Raises:
            RuntimeError: for a missing variable, a layout that cannot be known, jobs that do not
                sum to the tasks, more GPUs than there are.
            ValueError: for a variable that cannot be read, such as a host list; it is a
                RuntimeError as well. All of them are `slurm_resolver.SlurmResolverError`.
        """
        hooks = [name for name in HOOKS if hasattr(self, name)]
        if hooks:
            raise LayoutError(
                f"{type(self).__name__} has {', '.join(hooks)}, which only TensorFlow's resolver "
                "calls. Expected arguments instead: tasks_per_node for the number of tasks on each "
                "node, and node_address for other names of the nodes; the ranks are Slurm's."
            )
        options = ClusterOptions(
            jobs=jobs,
            port_base=port_base,
            placement=placement,
            worker_order=worker_order,
            het_groups=het_groups,
            node_address=node_address,
            gpu_jobs=gpu_jobs,
            layout=layout,
            gpus_per_node=gpus_per_node,
            gpus_per_task=gpus_per_task,
            tasks_per_node=tasks_per_node,
            local=local,
        )
        self._cluster = resolve_step(SlurmStep.read(), options)
        self._devices = show_gpus(self._cluster, auto_set_gpu)
        connect_directly(self._cluster, os.environ)
        # In less time and memory than `tf.train.ClusterSpec(jobs)`.
        definition = tf.train.ClusterDef()
        for job, addresses in self._cluster.jobs().items():
            definition.job.add(name=job).tasks.update(enumerate(addresses))
        self._spec = tf.train.ClusterSpec(definition)
        task = self._cluster.task
        self.task_type = task.job if task else None
        self.task_id = task.index if task else None
        self.rpc_layer = rpc_layer
        if task:
            tell_once(self._cluster.own_task_text())
        join(self._cluster)

    def __repr__(self) -> str:
        """Returns one line: this task's rank, job, node, port and GPUs."""
        return f"<{type(self).__name__}: {self._cluster.own_task_text()}>"

    def __str__(self) -> str:
        """Returns the cluster as `print` shows it: one line for each task, for up to 100 tasks."""
        return str(self._cluster)

    @property
    def cluster(self) -> Cluster:
        """The whole resolved cluster, with every task's rank, node, job, index and address."""
        return self._cluster

    @property
    def gpus(self) -> tuple[str, ...] | None:
        """This task's GPUs as CUDA_VISIBLE_DEVICES names them; None if they are unknown."""
        return self._cluster.gpus

    def cluster_spec(self) -> tf.train.ClusterSpec:
        """Returns the `tf.train.ClusterSpec` of all jobs but evaluator; empty without Slurm."""
        return self._spec

    def get_task_info(self) -> tuple[str | None, int | None]:
        """Returns this task's job name and its index in the job."""
        return self.task_type, self.task_id

    def master(
        self,
        task_type: str | None = None,
        task_id: int | None = None,
        rpc_layer: str | None = None,
    ) -> str:
        """Returns the URL of a task in `cluster_spec()`, such as ``grpc://n1:8888``, or ''.

        Without arguments it is that of this task.
        """
        task_type = task_type or self.task_type
        task_id = self.task_id if task_id is None else task_id
        if None in (task_type, task_id):
            return ""
        task = self._cluster.task
        if task and (task_type, task_id) == (task.job, task.index):
            address = task.address  # an evaluator is not in the cluster's spec
        else:
            address = self.cluster_spec().task_address(task_type, task_id)
        layer = rpc_layer or self.rpc_layer
        return f"{layer}://{address}" if layer else address

    def num_accelerators(
        self,
        task_type: str | None = None,
        task_id: int | None = None,
        config_proto: tf.compat.v1.ConfigProto | None = None,
    ) -> dict[str, int]:
        """Returns the GPUs that this process will use, as ``{"GPU": 2}``; {} for none.

        It leaves out GPUs that `tf.config.set_visible_devices` has hidden. It ignores its
        arguments, which are TensorFlow's: no task knows another's devices.
        """
        number = count_gpus(self._devices)
        return {"GPU": number} if number else {}

    def wait_until_ready(self, timeout: float | None = None) -> None:
        """Returns when all tasks of the step have called it, agree, and reach each other's ports.

        Call it in every task before you create a strategy or server of TensorFlow's, which would
        wait without a message. This package's strategies do so themselves. Without Slurm it returns
        at once.

        Args:
            timeout: the seconds to wait; None is SLURM_RESOLVER_START_TIMEOUT, or 600.

        Raises:
            RendezvousError: in every task, within `timeout` seconds and a few more. It names the
                ranks and nodes that are missing, the difference, or the port that is taken or does
                not answer.
        """
        if timeout is None:
            timeout = self._cluster.step.start_seconds
        wait_until_ready(self._cluster, timeout)

    def serve(
        self,
        server: tf.distribute.Server | None = None,
        start_timeout: float | None = None,
    ) -> int:
        """Serves until the tasks that train have ended, and returns this process's exit status.

        For the parameter servers, and under ParameterServerStrategy the workers::

            if resolver.task_type in ("ps", "worker"):
                sys.exit(resolver.serve())

        The status is 0 if the training has ended well, else 1, with a message on standard error:
        for example, if a task that trains has failed, or the chief is lost. If a parameter
        server is lost, the tasks that train end with status 1 after 5 s, as TensorFlow may wait for
        it without end.

        Args:
            server: this task's server: a tf.distribute.Server or tf.compat.v1.train.Server. None
                makes one.
            start_timeout: the seconds to wait for the chief (without one, worker 0) and for all
                parameter servers; None is SLURM_RESOLVER_START_TIMEOUT, or 600.

        Raises:
            JobsError: in a task that trains, without a ps job, without Slurm, in a child process.
        """
        return serve(self, server, start_timeout)
