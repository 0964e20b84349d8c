"""A MultiWorkerMirroredStrategy under which Keras 3 trains as in one process.

Begin here: the strategy waits for the other workers, starts TensorFlow, and lets `patches` change
Keras. Keras then asks it for the data that this worker reads (`read_dataset`), and for the function
that takes a step (`make_function`).
"""

from __future__ import annotations

import functools
import pickle
import random
import signal
import weakref
import zlib
from typing import Any, Literal

import numpy as np
import tensorflow as tf

from slurm_resolver import signals
from slurm_resolver.coordination import TRAIN
from slurm_resolver.errors import JobsError
from slurm_resolver.log import warn_once
from slurm_resolver.tf import early_start, private_names
from slurm_resolver.tf.exchange import Workers
from slurm_resolver.tf.keras.differences import REMEDY_OF_DATA, Entry, compare
from slurm_resolver.tf.keras.division import WorkerData, share_out
from slurm_resolver.tf.keras.metrics import adding_up
from slurm_resolver.tf.keras.one_process import (
    is_one_process,
    place_beside,
    place_slot,
    update_once,
)
from slurm_resolver.tf.keras.patches import prepare
from slurm_resolver.tf.keras.protocols import EpochIterator, Model
from slurm_resolver.tf.keras.sharing import BYTES_PER_BUCKET, NO_SEED, Sharing, is_one_of
from slurm_resolver.tf.keras.step_comparison import Comparison
from slurm_resolver.tf.keras.step_function import StepFunction
from slurm_resolver.tf.keras.sums import gather_small_tensors
from slurm_resolver.tf.private_names import Method
from slurm_resolver.tf.reporter import reporter
from slurm_resolver.tf.resolver import SlurmClusterResolver
from slurm_resolver.tf.resolver_cluster import slurm_step_of
from slurm_resolver.tf.strategy_start import choose_communication, starting_together

# The coordination service notices a silent worker: see `coordination.silence`. TensorFlow's own
# heartbeats would not even outlast a job that is suspended.
_HEARTBEAT_MS = 1000 * 24 * 3600
# The types of numbers that TensorFlow's CollectiveBcastSend takes, and that hold all others.
_BROADCAST = (tf.float32, tf.float64, tf.int32, tf.int64)
# What a step may ask the strategy for, which is another one in one process.
_OF_ONE_PROCESS = (
    "experimental_local_results",
    "gather",
    "num_replicas_in_sync",
    "reduce",
    "run",
)


class MultiWorkerMirroredStrategy(
    tf.distribute.MultiWorkerMirroredStrategy  # type: ignore[misc]
):
    """TensorFlow's class, under which Keras 3's `fit`, `evaluate` and `predict` work as well.

    ::

        strategy = MultiWorkerMirroredStrategy()
        with strategy.scope():
            model = keras.Sequential(…)
            model.compile(…)
        model.fit(dataset, epochs=10)

    The batch size of the dataset is the global one: each worker takes its share. Weights, history,
    evaluation and prediction are those of one process that trains on the same batches, with its
    random numbers, except for what docs/keras.md lists as different by design. Every worker may
    save the model. Custom loops and tf_keras work as under TensorFlow's class.
    """

    def __getattribute__(self, name: str) -> Any:
        """Returns an attribute; in the step of one process, some of its strategy, the default."""
        if name in _OF_ONE_PROCESS and is_one_process():
            strategy = tf.distribute.get_strategy()
            if strategy is not self:
                return getattr(strategy, name)
        return super().__getattribute__(name)

    def __init__(
        self,
        cluster_resolver: tf.distribute.cluster_resolver.ClusterResolver | None = None,
        communication_options: Any = None,
        *,
        start_timeout: float | None = None,
        on_stall: Literal["report", "exit"] = "report",
        custom_losses: Literal["whole", "mean"] | None = None,
    ) -> None:
        """Waits until all workers are present, and starts this worker's server.

        Create the strategy before you use TensorFlow in any other way, such as for a dataset.

        From then on, SIGUSR1 and SIGUSR2 are blocked in this thread and in the processes that it
        starts. Another thread gets them for this process, whose handlers run as before.

        Args:
            cluster_resolver: None makes a `SlurmClusterResolver()`.
            communication_options: a `tf.distribute.experimental.CommunicationOptions`. If it names
                no implementation, or is None, NCCL is requested if every task has GPUs that no
                other task uses, else gRPC.
            start_timeout: the seconds to wait for all workers; None is
                SLURM_RESOLVER_START_TIMEOUT, or 600. Missing workers are named after 30 s, and then
                every minute.
            on_stall: what to do when no worker has ended a step for SLURM_RESOLVER_STALL_SECONDS
                (300): "report" it; with "exit", the tasks that the others wait for also end, with
                status 1, so that `slurm-resolver supervise` starts the step again.
            custom_losses: not needed any more; a value is accepted, and has no effect.

        Raises:
            ValueError: for another `on_stall`.
            StartError: if the program has used TensorFlow before.
            RendezvousError: in every worker that is present, if others are missing, naming them; or
                if they disagree on the cluster, or a port is taken.
            JobsError: in an evaluator, which does not train. In a cluster with parameter servers,
                in every task.
        """
        if custom_losses is not None:
            warn_once(
                f"custom_losses={custom_losses!r} is not needed any more, and has no effect: leave "
                "it out. A later version does not accept it"
            )
        self.comparisons: weakref.WeakSet[Comparison] = weakref.WeakSet()
        cluster_resolver = cluster_resolver or SlurmClusterResolver()
        _check_job(cluster_resolver)
        # Before TensorFlow starts its threads: those that run the generators of datasets may start
        # processes, too.
        signals.keep_from_children(signals.OF_USERS)
        with starting_together(cluster_resolver, start_timeout, TRAIN) as group:
            if group:
                _configure_heartbeats()
            options = choose_communication(communication_options, group, cluster_resolver)
            try:
                super().__init__(cluster_resolver, options)
            except RuntimeError as error:
                raise early_start.error_of(error) from None
        # Variables of any type are made. Until TensorFlow broadcasts other types than `_BROADCAST`.
        private_names.INITIAL_VALUE.replace(_initial_value, owner=self.extended)
        # TensorFlow now handles SIGTERM, which Python does not know. A forked child inherits the
        # handler, such as that of a PyDataset with `use_multiprocessing`.
        signals.end_children_by_sigterm(signal.SIG_DFL, None)
        self.workers = Workers(self, group)
        local_replicas = len(self.extended.worker_devices)
        self.sharing = Sharing(
            first_replica=self.workers.index * local_replicas,
            local_replicas=local_replicas,
            replicas=self.num_replicas_in_sync,
            bytes_per_bucket=getattr(communication_options, "bytes_per_pack", 0)
            or BYTES_PER_BUCKET,
        )
        self.of_several = len(self.workers.names) > 1
        self.unread: WorkerData | None = None  # until a model's function is made that reads it
        # How many seconds this worker has waited in its steps; GPUs end what they do unnoticed.
        self.waited: tf.Variable | None = None
        self.verified_steps = 0  # that are compared with one process
        if self.of_several:
            self._prepare_several(cluster_resolver)
        self._take_optimizers()
        prepare(self)
        reporter.start(cluster_resolver, on_stall)

    def _take_optimizers(self) -> None:
        """Lets optimizers train models of the scope in steps that are traced as in one process."""
        private_names.replace(self.extended, "update", update_once)
        private_names.replace(
            self.extended, "colocate_vars_with", functools.partial(place_slot, self)
        )
        # An optimizer from outside the scope has the default strategy.
        default = tf.distribute.get_strategy().extended
        private_names.replace(default, "update", update_once)
        private_names.replace(default, "colocate_vars_with", place_beside)

    def _prepare_several(self, resolver: Any) -> None:
        """Prepares what workers do together: waits, small sums on CPUs, variables and seeds."""
        if "GPU" not in self.extended.worker_devices[0]:
            gather_small_tensors(self.num_replicas_in_sync)
            with tf.device("/cpu:0"):
                self.waited = tf.Variable(0.0, trainable=False, dtype=tf.float64)
            reporter.waited = functools.partial(_read_waited, self.waited)
        private_names.CREATE_VARIABLE.replace(self.workers.make, owner=self.extended)
        step = slurm_step_of(resolver)
        _agree_on_seeds(self.workers, step.job_id)
        self.verified_steps = step.verified_steps or 0

    def read_dataset(self, iterator: EpochIterator, dataset: tf.data.Dataset) -> object:
        """Returns what Keras 3 reads in this worker: its rows of each batch, or all of them.

        Args:
            iterator: Keras' iterator over epochs, which is being made.
            dataset: what it will read.

        Raises:
            FitError: in every worker, if not all have the same number of batches.
        """
        length = Entry("the data", f"{iterator.num_batches or 'unknown'} batches")
        when = f"at the start of {self.workers.call}"
        compare(self.workers, when, [length], REMEDY_OF_DATA)
        self.unread = share_out(
            dataset,
            self.sharing,
            in_memory=is_one_of(private_names.DATA_ADAPTER.of(iterator), [private_names.ARRAYS]),
        )
        return self.unread or self.experimental_distribute_dataset(dataset)

    def run(self, fn: Method, *args: object, **kwargs: object) -> Any:
        """Runs a function in each replica, as TensorFlow's class does; see its arguments.

        Metrics of Keras 3 that it updates have the same values in all workers afterwards.
        """
        return super().run(adding_up(fn) if self.sharing.replicas > 1 else fn, *args, **kwargs)

    def make_function(self, model: Model, kind: str) -> StepFunction:
        """Returns a Keras model's function for a "train", "test" or "predict" step."""
        return StepFunction(self, model, kind)


def _configure_heartbeats() -> None:
    configure = private_names.CONFIGURE_HEARTBEATS
    if not configure.is_missing():
        context = private_names.CONTEXT.get()()
        configure.set(
            context,
            functools.partial(
                configure.of(context),
                heartbeat_timeout_in_ms=_HEARTBEAT_MS,
            ),
        )


def _read_waited(waited: tf.Variable) -> float:
    with tf.init_scope():  # while a step is being traced
        return float(waited.numpy())


def _check_job(resolver: Any) -> None:
    if "ps" in resolver.cluster_spec().jobs:
        raise JobsError(
            "MultiWorkerMirroredStrategy in a cluster with the job ps; expected chief and worker "
            "alone. TensorFlow would wait without end: leave ps out of jobs, or use "
            "ParameterServerStrategy"
        )
    if resolver.task_type == "evaluator":
        raise JobsError(
            f"MultiWorkerMirroredStrategy in evaluator {resolver.task_id}; expected a chief or a "
            "worker, which train. Evaluate there alone, without a strategy: "
            "if resolver.task_type == 'evaluator': …"
        )


def _initial_value(original: Method, *args: object, **kwargs: Any) -> object:
    """Returns what gives a new variable's value, which the first worker sends to all others.

    A type that cannot be sent, such as the int8 of a quantized layer, is sent as a wider one.
    """
    dtype = tf.as_dtype(kwargs.get("dtype") or tf.float32)
    if dtype in _BROADCAST or not (dtype.is_floating or dtype.is_integer):
        return original(*args, **kwargs)
    wider = tf.float32 if dtype.is_floating else tf.int64
    initial = kwargs["initial_value"]

    def widened() -> tf.Tensor:
        value = initial() if callable(initial) else initial
        # a value from a checkpoint is wrapped
        return tf.cast(getattr(value, "wrapped_value", value), wider)

    kwargs.update(initial_value=widened, dtype=wider)
    sent = original(*args, **kwargs)
    return lambda: tf.cast(sent(), dtype)


def _agree_on_seeds(workers: Workers, job_id: str | None) -> None:
    """Gives all workers the same random numbers, unless the program has seeded them alike.

    Keras draws its seeds from Python's generator. The seed is the job's, and stays the same when
    the job is requeued. TensorFlow's is `NO_SEED`, which keeps what operations with a seed of
    their own draw, such as ``shuffle(n, seed=1)``.
    """
    seed = zlib.crc32((job_id or "").encode())
    generators: dict[Method, Method] = {
        random.getstate: random.seed,
        np.random.get_state: np.random.seed,
    }
    for get_state, set_seed in generators.items():
        state = zlib.crc32(pickle.dumps(get_state()))
        if len(set(workers.exchange("creates the strategy", state))) > 1:
            set_seed(seed)
    if tf.compat.v1.get_seed(1)[0] == NO_SEED:  # an argument avoids a random number
        tf.random.set_seed(NO_SEED)


early_start.watch()
