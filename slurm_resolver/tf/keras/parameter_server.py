"""TensorFlow's ParameterServerStrategy, under which Keras 3's `fit` trains on all workers.

Keras calls a function with an iterator for each step, and uses its result as the logs of the step.
Here the function only schedules the step. At the end of an epoch, when Keras asks the model for its
metrics, the chief waits for all steps.
"""

from __future__ import annotations

import contextlib
import functools
import itertools
import types
from collections import deque
from typing import Any, Callable, Deque, Dict, Iterator, List, Optional

import tensorflow as tf
from tensorflow.python.distribute import input_lib

from slurm_resolver.cluster.jobs import DATA_JOBS
from slurm_resolver.errors import JobsError, KerasError
from slurm_resolver.tf import start
from slurm_resolver.tf.keras.functions import as_tensor, compiled
from slurm_resolver.tf.keras.patches import patch_metrics, prepare
from slurm_resolver.tf.keras.sharing import without_optionals

_JOBS = ("chief", "ps", "worker")  # the jobs whose tasks the strategy connects

_AHEAD = 4  # scheduled steps for each worker, so that no worker waits

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
    An epoch takes every batch once. Evaluation and prediction are exact.

    The chief reads a dataset, array or generator, and sends each batch to its worker. If that is
    too slow, let each worker read its own::

        data = strategy.distribute_datasets_from_function(dataset_fn)
        model.fit(data, epochs=10, steps_per_epoch=1000)

    ``compile(steps_per_execution=n)`` lets the workers predict n batches at once.

    Callbacks run on the chief. All steps of an epoch are done at its end; the steps and logs of a
    batch are complete at its end only with ``steps_per_execution``. Custom loops and tf_keras work
    as under TensorFlow's class.
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
            variable_partitioner: how to partition large variables, as in TensorFlow; for custom
                loops and tf_keras, not for Keras 3.
            start_timeout: seconds in which all others have to call ``resolver.serve()``; see
                `MultiWorkerMirroredStrategy`.

        Raises:
            RendezvousError: if some do not serve in time, with their names.
            JobsError: in any other task than the chief.
        """
        task = getattr(cluster_resolver, "task_type", None)
        if task in ("ps", "worker", *DATA_JOBS):
            raise JobsError(
                f"ParameterServerStrategy in {task} {cluster_resolver.task_id}, which serves; it "
                "is for the chief. Before it write: if resolver.task_type != 'chief': "
                "sys.exit(resolver.serve())"
            )
        with start.starting_together(cluster_resolver, start_timeout, _JOBS):
            super().__init__(cluster_resolver, variable_partitioner)
        self.num_workers = len(cluster_resolver.cluster_spec().job_tasks("worker"))
        prepare(self)

    def coordinator(self) -> Any:
        """Returns the strategy's only `ClusterCoordinator`."""
        return tf.distribute.coordinator.ClusterCoordinator(self)

    def make_function(self, model: Any, kind: str) -> Any:
        """Returns a Keras model's function for a "train", "test" or "predict" step."""
        check_model(self, model)
        return ScheduledFunction(model, kind)

    def share_out(self, dataset: Any) -> Any:
        """Returns what Keras 3 reads on the chief: the dataset."""
        return dataset

    def distribute_datasets_from_function(
        self, dataset_fn: DatasetFunction, options: Optional[Any] = None
    ) -> Any:
        """Returns a dataset that each worker makes and reads for itself.

        Args:
            dataset_fn: takes a `tf.distribute.InputContext`, and returns a batched dataset. Each
                worker shuffles it differently if it has no seed. A finite dataset is repeated; an
                epoch has as many steps, of all workers together, as it has batches. Otherwise give
                `steps_per_epoch`.
            options: a `tf.distribute.InputOptions`.
        """
        if tf.inside_function():
            return super().distribute_datasets_from_function(dataset_fn, options)
        return WorkerData(self, dataset_fn, options)


def check_model(strategy: Any, model: Any) -> None:
    """Raises KerasError for a model that cannot be trained in this way."""
    partitioned = [each.path for each in model.variables if not hasattr(each.value, "handle")]
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
    if partitioned:
        raise KerasError(
            f"the variable {partitioned[0]} is partitioned, which Keras 3 cannot train. Leave out "
            "variable_partitioner, or use tf_keras or your own loop."
        )


class WorkerData(input_lib.DistributedDatasetsFromFunction):  # type: ignore[misc]
    """A dataset that each worker makes for itself, for `fit` and for the `ClusterCoordinator`.

    Keras recognizes datasets by the names of their classes.
    """

    def __init__(self, strategy: Any, dataset_fn: DatasetFunction, options: Any) -> None:
        self._strategy = strategy
        self._dataset_fn = dataset_fn
        self._options = options

    @functools.cached_property
    def chiefs(self) -> tf.data.Dataset:
        """The chief's own dataset."""
        replicas = self._strategy.num_replicas_in_sync
        return self._dataset_fn(tf.distribute.InputContext(num_replicas_in_sync=replicas))

    def __call__(self) -> Any:
        """Makes the dataset of one worker, in a function that runs there."""
        return self._strategy.distribute_datasets_from_function(self._dataset_fn, self._options)

    def __iter__(self) -> Iterator[Any]:
        """Returns the chief's batches: Keras learns the shapes from them, and tests with them."""
        iterator: Any = iter(self.chiefs)
        iterator.of_workers = lambda: self.of_workers
        return iterator  # type: ignore[no-any-return]

    @property
    def element_spec(self) -> Any:
        """The shapes and types of a batch."""
        return self.chiefs.element_spec

    @property
    def cardinality(self) -> int:
        """The number of batches in an epoch; below 0 if it is unknown or infinite."""
        return int(self.chiefs.cardinality())

    def map(self, function: Callable[..., Any]) -> WorkerData:
        """Returns the dataset with each batch changed, as Keras does for `class_weight`."""
        return self._changed(lambda dataset: dataset.map(function))

    def prefetch(self, buffer_size: int) -> WorkerData:
        """Returns the dataset with batches that each worker reads ahead."""
        return self._changed(lambda dataset: dataset.prefetch(buffer_size))

    @functools.cached_property
    def of_workers(self) -> Any:
        """The iterator of all workers, which continues from one epoch to the next."""
        endless = self._changed(tf.data.Dataset.repeat) if self.cardinality >= 0 else self
        return iter(self._strategy.coordinator().create_per_worker_dataset(endless))

    def _changed(self, change: Callable[[tf.data.Dataset], tf.data.Dataset]) -> WorkerData:
        function = self._dataset_fn
        return WorkerData(self._strategy, lambda context: change(function(context)), self._options)


class ScheduledFunction:
    """A model's function for a "train", "test" or "predict" step, which the workers run."""

    def __init__(self, model: Any, kind: str) -> None:
        import keras

        patch_metrics(keras)
        self._model = model
        self._trains = kind == "train"
        self._strategy = model.distribute_strategy
        self._coordinator = self._strategy.coordinator()
        self._step = getattr(model, f"{kind}_step")
        self._on_batch = compiled(model, self._run_on_batch)
        self._on_iterator = compiled(model, lambda iterator: self._run(next(iterator)))
        self._under_way: Deque[Any] = deque()
        self._logs: Dict[str, Any] = {}

    def __call__(self, data: Any) -> Any:
        """Returns the outputs for a list of batches, or for an iterator logs that `join` completes.

        For an iterator, it schedules `steps_per_execution` steps.
        """
        if isinstance(data, list):
            return self._predict(data)
        count, function, batches = self._model.steps_per_execution, self._on_batch, data
        if self._trains and hasattr(data, "of_workers"):
            function, batches = self._on_iterator, itertools.repeat(data.of_workers())
        begun = False
        for batch in itertools.islice(batches, count):
            begun = True
            if len(self._under_way) >= _AHEAD * self._strategy.num_workers:
                self._take_logs(self._under_way.popleft())
            self._under_way.append(self._schedule(function, batch))
        if not begun:
            raise StopIteration
        # Keras makes a generator for `train_on_batch`, whose logs it needs at once.
        if count > 1 or isinstance(data, types.GeneratorType):
            self.join()
        return self._logs

    def join(self) -> None:
        """Waits for all steps, and takes the last one's logs; raises the error of a step."""
        last = list(self._under_way)[-1:]
        self._under_way.clear()
        with _told_where_data_ends():
            self._coordinator.join()
        for remote in last:
            self._take_logs(remote)

    def _take_logs(self, remote: Any) -> None:
        try:
            self._logs.update(remote.fetch())
        except tf.errors.OpError:
            # This raises the error of a step that failed. If a worker is lost, another one's logs
            # are used.
            with _told_where_data_ends():
                self._coordinator.join()

    def _predict(self, batches: List[Any]) -> Any:
        remotes = [self._schedule(self._on_batch, batch) for batch in batches]
        try:
            outputs = [remote.get() for remote in remotes]
        except tf.errors.UnavailableError:  # a worker is lost, and its predictions with it
            return self._predict(batches)
        return tf.nest.map_structure(lambda *parts: tf.concat(parts, axis=0), *outputs)

    def _schedule(self, function: Callable[..., Any], data: Any) -> Any:
        with _told_where_data_ends():
            return self._coordinator.schedule(function, (without_optionals(data),))

    def _run_on_batch(self, batch: Any) -> Any:
        return self._run(tf.nest.map_structure(_with_unknown_rows, batch))

    def _run(self, batch: Any) -> Any:
        return tf.nest.map_structure(as_tensor, self._strategy.run(self._step, args=(batch,)))


def _with_unknown_rows(value: Any) -> Any:
    """Hides a tensor's number of rows while a step is traced, as a dataset does.

    If Keras knows the number, it weights the losses of several outputs by it.
    """
    if not isinstance(value, tf.Tensor) or not value.shape.rank:
        return value
    return tf.compat.v1.placeholder_with_default(value, [None, *value.shape[1:]])


@contextlib.contextmanager
def _told_where_data_ends() -> Iterator[None]:
    try:
        yield
    except tf.errors.OutOfRangeError as error:
        raise ValueError(
            "a worker's dataset has ended before the steps of fit; expected one without an end: "
            "let dataset_fn return dataset.repeat()"
        ) from error
