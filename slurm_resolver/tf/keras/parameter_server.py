"""TensorFlow's ParameterServerStrategy, under which Keras 3's `fit` trains on all workers."""

from __future__ import annotations

import functools
from typing import Any, Callable, Iterator, Optional

import tensorflow as tf
from tensorflow.python.distribute import input_lib

from slurm_resolver.cluster.data_service import DATA_JOBS
from slurm_resolver.errors import JobsError, KerasError
from slurm_resolver.tf import start
from slurm_resolver.tf.keras.coordinated_steps import PredictFunction, StepFunction
from slurm_resolver.tf.keras.patches import prepare

_JOBS = ("chief", "ps", "worker")  # whose tasks the strategy connects

DatasetFunction = Callable[[tf.distribute.InputContext], tf.data.Dataset]


class ParameterServerStrategy(
    tf.distribute.ParameterServerStrategy  # type: ignore[misc]
):
    """TensorFlow's class, under which Keras 3's `fit`, `evaluate` and `predict` work as well.

    ::

        resolver = SlurmClusterResolver({"chief": 1, "ps": 1, "worker": -1})
        if resolver.task_type != "chief":
            sys.exit(resolver.serve())
        strategy = ParameterServerStrategy(resolver)
        with strategy.scope():
            model = keras.Sequential(…)
            model.compile(…)
        model.fit(dataset, epochs=10)

    Each batch is a step of the worker that is free next; its gradients are applied as they come.
    An epoch takes every batch once, as in one process. Evaluation and prediction are exact.

    A dataset, array or generator is read by the chief, which sends each batch to its worker. Where
    that is too slow, let each worker read for itself::

        data = strategy.distribute_datasets_from_function(dataset_fn)
        model.fit(data, epochs=10, steps_per_epoch=1000)

    The workers predict as many batches at once as ``compile(steps_per_execution=n)`` says, else 1.

    Callbacks run on the chief. At the end of an epoch all its steps are done; at the end of a batch
    only with ``compile(steps_per_execution=n)``, n steps of all workers together, and only then
    are its logs those of that batch. Loops of one's own and tf_keras work as under TensorFlow's
    class.
    """

    of_several = True

    def __init__(
        self,
        cluster_resolver: Any,
        variable_partitioner: Optional[Any] = None,
        *,
        start_timeout: Optional[float] = None,
    ) -> None:
        """Waits until the workers and parameter servers serve, and connects to them.

        Args:
            cluster_resolver: with a chief, which this process is, workers and parameter servers.
            variable_partitioner: how to share out large variables among the parameter servers, as
                in TensorFlow; for loops of one's own and tf_keras, not for Keras 3.
            start_timeout: seconds in which all others have to call ``resolver.serve()``; see
                `MultiWorkerMirroredStrategy`.

        Raises:
            RendezvousError: where not all serve in time, naming them.
            JobsError: in any task but the chief.
        """
        task = getattr(cluster_resolver, "task_type", None)
        if task in ("ps", "worker", *DATA_JOBS):
            raise JobsError(
                f"ParameterServerStrategy in {task} {cluster_resolver.task_id}, which serves; it "
                "is for the chief. Before it write: if resolver.task_type != 'chief': "
                "sys.exit(resolver.serve())"
            )
        seconds = start.start_timeout(start_timeout)
        with start.starting_together(cluster_resolver, seconds, _JOBS):
            super().__init__(cluster_resolver, variable_partitioner)
        self.num_workers = len(cluster_resolver.cluster_spec().job_tasks("worker"))
        prepare(self)

    def coordinator(self) -> Any:
        """Returns the `ClusterCoordinator`, of which a strategy has one."""
        return tf.distribute.coordinator.ClusterCoordinator(self)

    def make_function(self, model: Any, kind: str) -> Any:
        """Returns a Keras model's function for a "train", "test" or "predict" step."""
        check_model(self, model)
        return (PredictFunction if kind == "predict" else StepFunction)(model, kind)

    def share_out(self, dataset: Any) -> Any:
        """Returns what Keras 3 reads on the chief: the dataset."""
        return dataset

    def distribute_datasets_from_function(
        self, dataset_fn: DatasetFunction, options: Optional[Any] = None
    ) -> Any:
        """Returns a dataset of which each worker makes and reads one of its own.

        Args:
            dataset_fn: takes a `tf.distribute.InputContext`, and returns a `tf.data.Dataset`,
                batched. Each worker shuffles it in another way where it has no seed. A finite one
                is repeated, and an epoch has as many steps, of all workers together, as it has
                batches; else give `steps_per_epoch`.
            options: a `tf.distribute.InputOptions`.
        """
        if tf.inside_function():
            return super().distribute_datasets_from_function(dataset_fn, options)
        return WorkerData(self, dataset_fn, options)


def check_model(strategy: Any, model: Any) -> None:
    """Raises KerasError for a model that cannot be trained in this way."""
    if model.run_eagerly:
        raise KerasError(
            "run_eagerly=True under ParameterServerStrategy: only compiled functions can be sent "
            "to workers. Leave it out; to look into a step, train in one process."
        )
    if strategy.num_replicas_in_sync > 1:
        raise KerasError(
            f"ParameterServerStrategy with {strategy.num_replicas_in_sync} GPUs in each worker, on "
            "which Keras 3 cannot train; expected one: start a task for each GPU."
        )
    for variable in model.variables:
        if not hasattr(variable.value, "handle"):
            raise KerasError(
                f"the variable {variable.path} is partitioned, which Keras 3 cannot train. Leave "
                "out variable_partitioner, or use tf_keras or a loop of your own."
            )


class WorkerData(input_lib.DistributedDatasetsFromFunction):  # type: ignore[misc]
    """A dataset of each worker's own.

    It may be given to Keras 3's `fit`, and, as what TensorFlow's class returns, to
    `ClusterCoordinator.create_per_worker_dataset`, which calls it in a function. Keras knows
    datasets by the names of their classes.
    """

    def __init__(
        self,
        strategy: ParameterServerStrategy,
        dataset_fn: DatasetFunction,
        options: Optional[Any],
    ) -> None:
        self._strategy = strategy
        self._dataset_fn = dataset_fn
        self._options = options
        self._workers_iterator: Optional[Any] = None

    @functools.cached_property
    def chiefs(self) -> tf.data.Dataset:
        """The chief's own dataset, made when it is needed: a changed copy may be for workers."""
        replicas = self._strategy.num_replicas_in_sync
        return self._dataset_fn(tf.distribute.InputContext(num_replicas_in_sync=replicas))

    def __call__(self) -> Any:
        """Makes the dataset of one worker, in a function that runs there."""
        return self._strategy.distribute_datasets_from_function(self._dataset_fn, self._options)

    def __iter__(self) -> Iterator[Any]:
        """Returns the chief's batches: Keras learns the shapes from them, and tests with them.

        The iterator's `workers_iterator` gives the workers'.
        """
        iterator: Any = iter(self.chiefs)
        iterator.workers_iterator = self.workers_iterator
        return iterator  # type: ignore[no-any-return]

    @property
    def element_spec(self) -> Any:
        """What a batch is made of."""
        return self.chiefs.element_spec

    @property
    def cardinality(self) -> int:
        """How many batches an epoch has; below 0 where that is not known or has no end."""
        return int(self.chiefs.cardinality())

    def map(self, function: Callable[..., Any]) -> WorkerData:
        """Returns the same with each batch changed, as Keras does for `class_weight`."""
        return self._changed(lambda dataset: dataset.map(function))

    def prefetch(self, buffer_size: int) -> WorkerData:
        """Returns the same, read ahead by each worker."""
        return self._changed(lambda dataset: dataset.prefetch(buffer_size))

    def workers_iterator(self) -> Any:
        """Returns the iterator of all workers, which goes on from one epoch to the next."""
        if self._workers_iterator is None:
            endless = self._changed(tf.data.Dataset.repeat) if self.cardinality >= 0 else self
            coordinator = self._strategy.coordinator()
            self._workers_iterator = iter(coordinator.create_per_worker_dataset(endless))
        return self._workers_iterator

    def _changed(self, change: Callable[[tf.data.Dataset], tf.data.Dataset]) -> WorkerData:
        function = self._dataset_fn
        return WorkerData(self._strategy, lambda context: change(function(context)), self._options)
