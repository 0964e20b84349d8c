"""`SlurmClusterResolver`: the resolved cluster, as TensorFlow's distribute API asks for it."""

from __future__ import annotations

import os
from typing import Any, Collection, Dict, List, Mapping, Optional, Tuple

import tensorflow as tf

from slurm_resolver.cluster.cluster import Cluster, describe_own_task
from slurm_resolver.cluster.jobs import JOBS_OUTSIDE_SPEC
from slurm_resolver.cluster.options import (
    ClusterOptions,
    LayoutChoice,
    NodeAddress,
    Placement,
    WorkerOrder,
)
from slurm_resolver.cluster.resolve import resolve_step
from slurm_resolver.log import tell_once
from slurm_resolver.slurm.hostlist import expand_hostlist, expand_tasks_per_node
from slurm_resolver.slurm.step import SlurmStep
from slurm_resolver.tf.gpus import count_gpus, show_gpus
from slurm_resolver.tf.hooks import ResolverHooks, TasksPerNode
from slurm_resolver.tf.private_names import PrivateNames

__all__ = ["SlurmClusterResolver", "expand_hostlist", "expand_tasks_per_node"]


class SlurmClusterResolver(
    ResolverHooks,
    PrivateNames,
    tf.distribute.cluster_resolver.ClusterResolver,  # type: ignore[misc]
):
    """Resolves the cluster of a Slurm step for tf.distribute and tf.compat.v1.train.Server.

    A drop-in replacement for ``tf.distribute.cluster_resolver.SlurmClusterResolver``: same
    constructor, attributes and methods, and the same four methods to override. Start the script
    with srun and pass the resolver on::

        resolver = SlurmClusterResolver()
        strategy = tf.distribute.MultiWorkerMirroredStrategy(cluster_resolver=resolver)

    ``print(resolver)`` shows the cluster. At the level INFO the logger ``slurm_resolver`` says in
    one line what each task is. Everything is resolved in the constructor, once. Without Slurm, in
    an allocation of one task without srun, with ``local=True`` and with SLURM_RESOLVER=off the
    cluster is empty, and TensorFlow trains locally.

    The constructor changes the process in these ways, and all else changes nothing:

    - It sets CUDA_VISIBLE_DEVICES (ROCR_VISIBLE_DEVICES, ZE_AFFINITY_MASK) where Slurm left open
      which GPUs are this task's, and SLURM_RESOLVER_GPUS to know that. So make the resolver before
      TensorFlow looks at the devices. Where several tasks share a GPU it sets
      TF_FORCE_GPU_ALLOW_GROWTH, unless it is set: the first would take all of the memory. With
      `auto_set_gpu` False it sets none of them.
    - Where the tasks have to tell each other where they run, it leaves the answer for child
      processes in SLURM_RESOLVER_LAYOUT.
    - With a ps job or a tf.data service, in all tasks but evaluators: it starts a thread that
      holds a connection to the step's coordination service, and registers a function with `atexit`.
      So it does in an evaluator where that service listens.
      With a ps job it sets GRPC_FAIL_FAST unless it is set, and in a chief it changes TensorFlow's
      ClusterCoordinator, which would wait for lost workers for ever.
    """

    def __init__(
        self,
        jobs: Optional[Mapping[str, int]] = None,
        port_base: Optional[int] = None,
        gpus_per_node: Optional[int] = None,
        gpus_per_task: Optional[int] = None,
        tasks_per_node: Optional[TasksPerNode] = None,
        auto_set_gpu: bool = True,
        rpc_layer: Optional[str] = "grpc",
        *,
        placement: Placement = "spread",
        worker_order: WorkerOrder = "ring",
        het_groups: Optional[Mapping[str, int]] = None,
        node_address: Optional[NodeAddress] = None,
        gpu_jobs: Optional[Collection[str]] = None,
        layout: LayoutChoice = "auto",
        local: bool = False,
    ) -> None:
        """Resolves the cluster.

        Args:
            jobs: number of tasks by job name: chief, worker, ps, evaluator; dispatcher and
                data_worker, a tf.data service; or names of your own, for TensorFlow's servers. They
                sum to the tasks of the step; one may be -1, the rest. None makes all workers.
            port_base: the first port on each node; the task with local rank i gets
                ``port_base + i``. None takes the ports that Slurm reserved for the step, or derives
                them from its ids; 8888 where it has none.
            gpus_per_node: GPUs on each node; None takes what Slurm says.
            gpus_per_task: GPUs of each task; None shares a node's GPUs among its tasks. With either
                number all tasks but those of a tf.data service use GPUs, as in TensorFlow's
                resolver, unless `gpu_jobs` says which.
            tasks_per_node: tasks on every node, or by node name; None takes what Slurm says.
            auto_set_gpu: whether to set the variables that show this process its GPUs.
            rpc_layer: TensorFlow's protocol, which stands before addresses: ``grpc://n1:8888``.
            placement: "spread" puts parameter servers on different nodes, evenly and away from the
                chief's, and the tasks of a tf.data service where they leave as many others on each
                node; "rank" assigns ranks to jobs exactly as TensorFlow's own resolver does.
            worker_order: "ring" numbers the workers such that TensorFlow's ring of collectives
                leaves every node once (`slurm_resolver.cluster.ring_order`); "rank" numbers them by
                rank, as TensorFlow's own resolver does.
            het_groups: by job name, the component of a heterogeneous step to take its tasks from.
            node_address: from a node's name to the host that others connect to: a mapping, a
                callable, or a suffix such as "-ib0". With "slurm" each task asks Slurm once for
                the addresses, which works where names do not resolve. None takes the names.
            gpu_jobs: the jobs whose tasks use GPUs. None: all but the parameter servers, the tasks
                of a tf.data service, and the chief where there are parameter servers, as it then
                only coordinates.
            layout: "environment" computes from the variables alone which rank runs on which node.
                With "rendezvous" the tasks tell each other over TCP; all tasks of the step must
                choose it. "auto" does that where the variables do not describe the layout.
            local: True trains alone, without a cluster, wherever this process runs; so does the
                variable SLURM_RESOLVER=off.

        Raises:
            RuntimeError: for a missing variable, a layout that cannot be known, jobs that do not
                sum to the tasks, more GPUs than there are.
            ValueError: for a variable that cannot be read, such as a host list; it is a
                RuntimeError as well. All of them are `slurm_resolver.SlurmResolverError`.
        """
        super().__init__()
        self._step = SlurmStep.read(os.environ)
        self._options = ClusterOptions(
            jobs,
            port_base,
            placement,
            worker_order,
            het_groups,
            node_address,
            gpu_jobs,
            layout,
            gpus_per_node,
            gpus_per_task,
            local,
        )
        layout_of, is_told = self._given_layout(tasks_per_node)
        self._cluster = resolve_step(self._step, self._options, layout_of, is_told)
        self._auto_set_gpu = auto_set_gpu
        self._devices = show_gpus(self._cluster, auto_set_gpu)
        self._spec = _cluster_spec(self._cluster.jobs())
        own = self._cluster.task
        self.task_type = own.job if own else None
        self.task_id = own.index if own else None
        self.rpc_layer = rpc_layer
        if own:
            tell_once(describe_own_task(self._cluster))
        served = "ps" in self._spec.jobs or self.data_service is not None
        if served and self._step.is_live:
            from slurm_resolver.tf.server import take_part

            take_part(self._cluster)
        service = self._cluster.service
        if service and service.serves and self.task_type == "evaluator" and self._step.is_live:
            from slurm_resolver.coordination.client import connect

            connect(service)  # the workers meet there, and an evaluator's program never does

    def __repr__(self) -> str:
        """Returns one line: this task's rank, job, node, port and GPUs."""
        return f"<{type(self).__name__}: {describe_own_task(self._cluster)}>"

    def __str__(self) -> str:
        """Returns the cluster as `print` shows it: a line a task, of 100 tasks at most."""
        return str(self._cluster)

    @property
    def cluster(self) -> Cluster:
        """The whole resolved cluster, with every task's rank, node, job, index and address."""
        return self._cluster

    @property
    def gpus(self) -> Optional[Tuple[str, ...]]:
        """This task's GPUs as CUDA_VISIBLE_DEVICES names them; None where nothing tells."""
        return self._cluster.gpus

    @property
    def data_service(self) -> Optional[str]:
        """The tf.data service of the step, such as ``grpc://n8:23002``; None without one.

        For the tasks that train::

            service = tf.data.experimental.service
            mode = service.ShardingPolicy.DYNAMIC
            dataset = dataset.apply(service.distribute(mode, resolver.data_service))
        """
        return self._cluster.data_service

    def cluster_spec(self) -> Any:
        """Returns the `tf.train.ClusterSpec`, of those who train, and ps; empty without Slurm."""
        return self._spec

    def get_task_info(self) -> Tuple[Optional[str], Optional[int]]:
        """Returns this task's job name and its index in the job."""
        return self.task_type, self.task_id

    def master(
        self,
        task_type: Optional[str] = None,
        task_id: Optional[int] = None,
        rpc_layer: Optional[str] = None,
    ) -> str:
        """Returns the URL of a task, such as ``grpc://n1:8888``; by default of this one.

        It is '' where there is no cluster. Where a subclass overrides `cluster_spec`, that counts.
        """
        task_type = self.task_type if task_type is None else task_type
        task_id = self.task_id if task_id is None else task_id
        if task_type is None or task_id is None:
            return ""
        own, spec = self._cluster.task, self.cluster_spec()
        this_task = own is not None and (task_type, task_id) == (own.job, own.index)
        if own is not None and this_task and own.job in JOBS_OUTSIDE_SPEC:
            address = own.address  # it has one, though it is not in the spec
        else:
            address = spec.task_address(task_type, task_id)
        layer = rpc_layer or self.rpc_layer
        return f"{layer}://{address}" if layer else address

    def num_accelerators(
        self,
        task_type: Optional[str] = None,
        task_id: Optional[int] = None,
        config_proto: Optional[Any] = None,
    ) -> Dict[str, int]:
        """Returns the GPUs that this process will use, as ``{"GPU": 2}``; {} for none.

        GPUs that the program has hidden with `tf.config.set_visible_devices` do not count. The
        arguments are TensorFlow's and not used: no task knows another's devices.
        """
        number = count_gpus(self._devices)
        return {"GPU": number} if number else {}

    def wait_until_ready(self, timeout: float = 300.0) -> None:
        """Returns when all tasks of the step are here, agree on the cluster, and have free ports.

        Call it in every task, before the strategy or server is made: where TensorFlow would wait
        without a message, this raises within `timeout` seconds and a few more. The strategies of
        this package do so by themselves. Without Slurm it returns at once.

        Raises:
            RendezvousError: in every task, naming the ranks and nodes that are missing, what two
                tasks disagree on, or the port that is taken.
        """
        from slurm_resolver.preflight.ready import wait_until_ready

        wait_until_ready(self._cluster, timeout)

    def serve(self, server: Optional[Any] = None, start_timeout: float = 300.0) -> int:
        """Serves until the tasks that train have ended, and returns this process's exit status.

        For the parameter servers, under ParameterServerStrategy the workers, and the dispatcher and
        the data workers of a tf.data service::

            if resolver.task_type in ("ps", "worker", "dispatcher", "data_worker"):
                sys.exit(resolver.serve())

        The chief, or without a chief every worker, needs no call: its resolver holds a connection
        to the step's coordination service, which notices when it ends. The service runs in the
        task with local rank 0 on the first node, which waits at its exit until the others have
        left; where it is lost, all end with status 1.

        The status is 0 where the training has ended well. It is 1, with a message on the standard
        error, where the chief, a parameter server, the dispatcher or a data worker is lost, or any
        other task that trains has failed: by an exception, a signal or `os._exit`. A lost worker
        that serves ends nothing. Where a server is lost, the tasks that train end with status 1
        after 5 s: TensorFlow may wait for it for ever. A process that ends is noticed after 2 s, a
        node after 30 s without an answer, or the seconds in SLURM_RESOLVER_NETWORK_GRACE.

        A dispatcher or data worker ignores SIGUSR1, SIGUSR2 and SIGTERM, so that the tasks that
        train can save: see `slurm_resolver.termination_config`. A server of a tf.data service
        listens until the process ends. At its end `serve` sets GRPC_FAIL_FAST to what it was.

        Args:
            server: a tf.distribute.Server or tf.compat.v1.train.Server of this task, or a
                tf.data.experimental.service.DispatchServer or WorkerServer; None makes one, with
                TensorFlow's defaults.
            start_timeout: seconds for the chief (without one worker 0), all parameter servers, the
                dispatcher and all data workers to come.

        Raises:
            JobsError: in a task that trains, without a ps job, without Slurm, in a child process.
        """
        from slurm_resolver.tf.server import serve

        return serve(self._cluster, self.cluster_spec(), self.rpc_layer, server, start_timeout)


def _cluster_spec(jobs: Dict[str, List[str]]) -> Any:
    """Returns `tf.train.ClusterSpec(jobs)`, in less time and memory; empties `jobs`."""
    cluster = tf.train.ClusterDef()
    for job in list(jobs):
        cluster.job.add(name=job, tasks=dict(enumerate(jobs.pop(job))))
    return tf.train.ClusterSpec(cluster)
