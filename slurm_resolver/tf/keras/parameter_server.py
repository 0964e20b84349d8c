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
import weakref
from collections.abc import Iterator
from typing import Any, Callable

import tensorflow as tf

from slurm_resolver.coordination import TAKE_PART
from slurm_resolver.errors import FitError, JobsError, KerasError
from slurm_resolver.tf import private_names
from slurm_resolver.tf.keras.calls import SCOPE
from slurm_resolver.tf.keras.compiled import compiled
from slurm_resolver.tf.keras.patches import prepare
from slurm_resolver.tf.keras.protocols import EpochIterator, Model
from slurm_resolver.tf.keras.sharing import Structure, without_optionals
from slurm_resolver.tf.keras.traced_step import as_tensor, type_of_rows
from slurm_resolver.tf.private_names import Method
from slurm_resolver.tf.strategy_start import starting_together

_AHEAD = 4  # scheduled steps for each worker, so that no worker waits
_ATTEMPTS = 3  # to predict where workers are lost


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
    too slow, let each worker read its own with `distribute_datasets_from_function`.

    ``compile(steps_per_execution=n)`` lets the workers predict n batches at once. Callbacks run on
    the chief; the chief waits for all steps at the end of an epoch. Custom loops and tf_keras work
    as under TensorFlow's class.
    """

    of_several = True
    unread = None  # all steps take any batches

    def __init__(
        self,
        cluster_resolver: tf.distribute.cluster_resolver.ClusterResolver,
        variable_partitioner: Any = None,
        *,
        start_timeout: float | None = None,
    ) -> None:
        """Waits until the workers and parameter servers serve, and connects to them.

        Args:
            cluster_resolver: its cluster has workers, parameter servers and a chief, which is this
                process.
            variable_partitioner: how to partition large variables, as in TensorFlow; for custom
                loops and tf_keras, not for Keras 3.
            start_timeout: seconds in which all others have to call ``resolver.serve()``; see
                `MultiWorkerMirroredStrategy`.

        Raises:
            RendezvousError: if some do not serve in time, with their names.
            JobsError: in a parameter server or a worker.
        """
        task = getattr(cluster_resolver, "task_type", None)
        if task in ("ps", "worker"):
            raise JobsError(
                f"ParameterServerStrategy in {task} {cluster_resolver.task_id}, which serves; "
                "expected the chief. Before the strategy, write: if resolver.task_type != 'chief': "
                "sys.exit(resolver.serve())"
            )
        with starting_together(cluster_resolver, start_timeout, TAKE_PART):
            super().__init__(cluster_resolver, variable_partitioner)
        self.num_workers = cluster_resolver.cluster_spec().num_tasks("worker")
        prepare(self)

    def make_function(self, model: Model, kind: str) -> ScheduledFunction:
        """Returns a Keras model's function for a "train", "test" or "predict" step."""
        check_model(self, model)
        return ScheduledFunction(model, kind)

    def read_dataset(self, iterator: EpochIterator, dataset: tf.data.Dataset) -> tf.data.Dataset:
        """Returns what Keras 3 reads on the chief: the dataset."""
        return dataset

    def distribute_datasets_from_function(
        self,
        dataset_fn: Callable[[tf.distribute.InputContext], tf.data.Dataset],
        options: tf.distribute.InputOptions | None = None,
    ) -> tf.data.Dataset:
        """Returns a dataset that each worker makes and reads for itself, for `fit`.

        Args:
            dataset_fn: takes a `tf.distribute.InputContext`, and returns a batched dataset. Each
                worker shuffles it differently if it has no seed. If its `cardinality()` is known
                and finite, it is repeated; an epoch has as many steps, of all workers together, as
                it has batches. Make any other dataset endless with ``repeat()``, and give
                `steps_per_epoch`.
            options: a `tf.distribute.InputOptions`.
        """
        distribute = super().distribute_datasets_from_function
        if tf.inside_function():
            return distribute(dataset_fn, options)
        # The chief's own: Keras learns the shapes and an epoch's length from it, and tests with it.
        data = dataset_fn(
            tf.distribute.InputContext(num_replicas_in_sync=self.num_replicas_in_sync)
        )
        repetitions = None if int(data.cardinality()) >= 0 else 1

        def of_one(context: tf.distribute.InputContext) -> tf.data.Dataset:
            return dataset_fn(context).repeat(repetitions)

        @functools.cache
        def of_workers() -> Iterator[object]:  # continues from one epoch to the next
            coordinator = tf.distribute.coordinator.ClusterCoordinator(self)
            return iter(coordinator.create_per_worker_dataset(lambda: distribute(of_one, options)))

        data.of_workers = of_workers
        return data


def check_model(strategy: tf.distribute.Strategy, model: Model) -> None:
    """Raises an error for what cannot be trained, or what TensorFlow refuses without naming it."""
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
    optimizer = getattr(model, "optimizer", None)  # Keras says that `compile` was not called
    for variable in [*model.variables, *getattr(optimizer, "variables", ())]:
        if not hasattr(variable.value, "handle"):
            raise KerasError(
                f"the variable {variable.path} is partitioned, which Keras 3 cannot train. Leave "
                "out variable_partitioner, or use tf_keras or your own loop."
            )
        if not strategy.extended.variable_created_in_scope(variable.value):
            raise FitError(
                f"the variable {variable.path!r} of {model.name!r} was created outside "
                f"strategy.scope(). {SCOPE}"
            )
    for name in ("gradient_accumulation_steps", "ema_overwrite_frequency"):
        value = getattr(optimizer, name, None)
        if value:
            raise FitError(
                f"{model.name!r}: its optimizer has {name}={value}, which TensorFlow does not "
                "support under ParameterServerStrategy. Leave it out"
            )


@contextlib.contextmanager
def _told_where_data_ends() -> Iterator[None]:
    try:
        yield
    except tf.errors.OutOfRangeError as error:
        raise ValueError(
            "a worker's dataset has ended before the steps of fit; expected one without an end: "
            "let dataset_fn return dataset.repeat()"
        ) from error


class ScheduledFunction:
    """A model's function for a "train", "test" or "predict" step, which the workers run."""

    def __init__(self, model: Model, kind: str) -> None:
        self._model = model
        self._trains = kind == "train"
        self._strategy = model.distribute_strategy
        self._coordinator = tf.distribute.coordinator.ClusterCoordinator(self._strategy)
        self._step = getattr(model, f"{kind}_step")
        self._of_any_rows = compiled(self._run)
        self._on_batch = compiled(self._run_on_batch)
        self._on_iterator = compiled(lambda iterator: self._run(next(iterator)))
        self._under_way: list[Any] = []
        # How many batches of an epoch the workers have taken, by the chief's own iterator.
        self._seen: weakref.WeakKeyDictionary[Any, int] = weakref.WeakKeyDictionary()
        self._logs: dict[str, Structure] = {}

    @_told_where_data_ends()
    def __call__(self, data: Any) -> Structure:
        """Returns a list's outputs, or the logs of an iterator's steps, which `join` completes."""
        if isinstance(data, list):
            return self._predict(data)
        count = self._model.steps_per_execution
        function = self._on_batch
        batches = data
        of_workers = getattr(private_names.DATASET.of(data, None), "of_workers", None)
        if self._trains and of_workers:
            function = self._on_iterator
            batches = itertools.repeat(of_workers())
            length = int(private_names.DATASET.of(data).cardinality())
            if length > 0:  # Keras counts whole executions
                seen = self._seen.get(data, 0)
                count = min(count, length - seen)
                self._seen[data] = seen + count
        steps = [self._schedule(function, batch) for batch in itertools.islice(batches, count)]
        if not steps:
            raise StopIteration
        self._under_way += steps
        while len(self._under_way) > _AHEAD * self._strategy.num_workers * bool(self._logs):
            self._take_logs(self._under_way.pop(0))
        # Keras makes a generator for `train_on_batch`, whose logs it needs at once.
        if count > 1 or isinstance(data, types.GeneratorType):
            self.join()
        return self._logs

    def _schedule(self, function: Method, data: Structure) -> tf.distribute.coordinator.RemoteValue:
        return self._coordinator.schedule(function, (without_optionals(data),))

    @_told_where_data_ends()
    def join(self) -> None:
        """Waits for all steps, and takes the last one's logs; raises the error of a step."""
        last = self._under_way[-1:]
        self._under_way.clear()
        self._coordinator.join()
        for remote in last:
            self._take_logs(remote)

    def _take_logs(self, remote: Any) -> None:
        try:
            self._logs.update(remote.fetch())
        except tf.errors.OpError:
            # This raises the error of a failed step. The logs of a lost worker's step are left out.
            self._coordinator.join()

    def _predict(self, batches: list[Structure], attempt: int = 1) -> Structure:
        remotes = [self._schedule(self._on_batch, batch) for batch in batches]
        try:
            outputs = [remote.get() for remote in remotes]
        except tf.errors.UnavailableError:  # a worker is lost, and its predictions with it
            if attempt == _ATTEMPTS:
                raise
            return self._predict(batches, attempt + 1)
        return tf.nest.map_structure(lambda *parts: tf.concat(parts, axis=0), *outputs)

    def _run_on_batch(self, batch: Structure) -> Structure:
        """Runs a step whose graph does not know the number of rows, as that of a dataset.

        Keras weights logs by it. The graph is traced while a step is scheduled: TensorFlow warns of
        all others that they would run on the chief.
        """
        spec = tf.nest.map_structure(type_of_rows, batch)
        return self._of_any_rows.get_concrete_function(spec)(batch)

    def _run(self, batch: Structure) -> Structure:
        return tf.nest.map_structure(as_tensor, self._strategy.run(self._step, args=(batch,)))
