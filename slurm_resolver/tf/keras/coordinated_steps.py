"""Keras 3's train, test and predict functions for a coordinator: each step on a free worker.

Keras calls such a function with an iterator, and takes what it returns for the logs of that step.
Here a step is only scheduled. At the end of an epoch Keras asks the model for its metrics; then all
steps are waited for.
"""

from __future__ import annotations

import contextlib
import types
from collections import deque
from typing import Any, Callable, Deque, Dict, Iterator, List

import tensorflow as tf

from slurm_resolver.tf.keras.calls import strategies, without_optionals
from slurm_resolver.tf.keras.sharing import count_rows, part_of_batch

Step = Callable[..., Any]

# How many batches of the chief may be under way for each worker: enough that none of them waits.
_AHEAD = 4
# Into how many parts for each worker an execution of several steps is divided.
_PARTS = 4
# How often a prediction is asked for where workers are lost.
_ATTEMPTS = 3


class ScheduledStep:
    """A step of a model, to be run on workers by a coordinator."""

    def __init__(self, model: Any, step: Step, combine: Step) -> None:
        self.strategy = model.distribute_strategy
        self.workers = self.strategy.num_workers
        self._coordinator = self.strategy.coordinator()
        self._step = step
        self._combine = combine
        self.batch_function = self._compile(self._on_batch)

    def _compile(self, function: Step) -> Any:
        function = tf.autograph.experimental.do_not_convert(function)
        return tf.function(function, reduce_retracing=True)

    def schedule(self, function: Any, *args: Any) -> Any:
        """Has a worker run a function, and returns what stands for its result."""
        with _told_where_data_ends():
            return self._coordinator.schedule(function, args)

    def _on_batch(self, batch: Any) -> Any:
        """Runs the step on a batch that has come from the chief."""
        replicas = self.strategy.num_replicas_in_sync
        if replicas == 1:
            return self._on_replicas(self._step, batch)

        def on_part(batch: Any) -> Any:
            index = tf.distribute.get_replica_context().replica_id_in_sync_group
            rows = count_rows(batch)
            ends = rows * index // replicas, rows * (index + 1) // replicas
            return self._step(part_of_batch(batch, *ends))

        return self._on_replicas(on_part, batch)

    def _on_replicas(self, step: Step, batch: Any) -> Any:
        outputs = self.strategy.run(step, args=(batch,))
        return tf.nest.map_structure(self._of_all_replicas, outputs)

    def _of_all_replicas(self, value: Any) -> Any:
        if self.strategy.num_replicas_in_sync > 1:
            value = self._combine(self.strategy, value)
        return tf.convert_to_tensor(value) if isinstance(value, (int, float)) else value


class StepFunction(ScheduledStep):
    """A model's `train_function` or `test_function`."""

    def __init__(self, model: Any, step: Step, *, trains: bool) -> None:
        super().__init__(model, step, lambda strategy, value: strategy.reduce("MEAN", value, None))
        self._model = model
        self._trains = trains
        self._shares_function = self._compile(self._on_iterator)
        self._under_way: Deque[Any] = deque()
        self._logs: Dict[str, Any] = {}
        for metric in model.metrics:
            _let_updates_be_atomic(metric)

    def __call__(self, iterator: Any) -> Dict[str, Any]:
        """Schedules `steps_per_execution` steps, and returns the newest logs that are known.

        They are filled in when the steps have been waited for: with one step an execution that is
        at the end of the epoch.
        """
        count = self._model.steps_per_execution
        if self._trains and hasattr(iterator, "workers_iterator"):
            self._schedule_shares(iterator.workers_iterator(), count)
        else:
            self._schedule_batches(iterator, count)
        # Keras makes a generator for `train_on_batch`, whose logs it needs at once.
        if count > 1 or isinstance(iterator, types.GeneratorType):
            self.join()
        return self._logs

    def join(self) -> None:
        """Waits for all steps, and takes the last one's logs.

        Raises:
            tensorflow.errors.OpError: what a step has failed with.
        """
        last = list(self._under_way)[-1:]
        self._under_way.clear()
        with _told_where_data_ends():
            self._coordinator.join()
        for remote in last:
            self._take_logs(remote)

    def _schedule_batches(self, iterator: Iterator[Any], count: int) -> None:
        for done in range(count):
            try:
                batch = next(iterator)
            except StopIteration:
                if done:
                    return
                raise
            if len(self._under_way) >= _AHEAD * self.workers:
                self._take_logs(self._under_way.popleft())
            self._under_way.append(self.schedule(self.batch_function, without_optionals(batch)))

    def _schedule_shares(self, iterator: Any, count: int) -> None:
        parts = min(count, _PARTS * self.workers)
        for part in range(parts):
            steps = count * (part + 1) // parts - count * part // parts
            self._under_way.clear()
            self._under_way.append(
                self.schedule(self._shares_function, iterator, tf.constant(steps))
            )

    def _on_iterator(self, iterator: Any, count: Any) -> Any:
        """Runs several steps on batches that the worker reads itself."""
        outputs = self._on_replicas(self._step, next(iterator))

        def again(done: Any, _: Any) -> Any:
            return done + 1, self._on_replicas(self._step, next(iterator))

        return tf.while_loop(lambda done, _: done < count, again, (1, outputs))[1]

    def _take_logs(self, remote: Any) -> None:
        try:
            self._logs.update(remote.fetch())
        except tf.errors.OpError:
            # Where a step has failed, this raises its error; else only this worker was lost, which
            # had done the step, and the logs of another one will do.
            with _told_where_data_ends():
                self._coordinator.join()


class PredictFunction(ScheduledStep):
    """A model's `predict_function`: takes a list of batches, and returns their outputs."""

    def __init__(self, model: Any) -> None:
        super().__init__(model, model.predict_step, _concatenated)

    def __call__(self, batches: List[Any]) -> Any:
        """Has the workers predict as many batches at once as `steps_per_execution` says."""
        batches = [without_optionals(batch) for batch in batches]
        for attempt in range(_ATTEMPTS):
            remotes = [self.schedule(self.batch_function, batch) for batch in batches]
            try:
                outputs = [remote.get() for remote in remotes]
                break
            except tf.errors.UnavailableError:  # a worker is lost with what it has predicted
                if attempt == _ATTEMPTS - 1:
                    raise
        return tf.nest.map_structure(lambda *parts: tf.concat(parts, axis=0), *outputs)


def _concatenated(strategy: Any, value: Any) -> Any:
    return tf.concat(strategy.experimental_local_results(value), axis=0)


@contextlib.contextmanager
def _told_where_data_ends() -> Iterator[None]:
    try:
        yield
    except tf.errors.OutOfRangeError as error:
        raise ValueError(
            "a worker's dataset has ended before the steps of fit; expected one without an end: "
            "let dataset_fn return dataset.repeat()"
        ) from error


def let_additions_be_atomic(variable_type: Any) -> None:
    """Lets the `assign_add` of Keras' variables be TensorFlow's, in a coordinator's steps.

    Keras counts by `assign(variable + value)`: what another worker writes between the reading and
    the writing is lost. A parameter server does TensorFlow's `assign_add` as one.
    """
    original = variable_type.assign_add

    def assign_add(self: Any, value: Any) -> Any:
        target = self.value
        strategy = tf.distribute.get_strategy()
        if strategy in strategies and hasattr(strategy, "coordinator") and _is_shared(target):
            return target.assign_add(tf.cast(value, target.dtype))
        return original(self, value)

    variable_type.assign_add = assign_add


def _let_updates_be_atomic(metric: Any) -> None:
    """Lets a metric's updates be added to its variables."""
    import keras

    if "update_state" in vars(metric):
        return
    original = metric.update_state

    def update_state(*args: Any, **kwargs: Any) -> None:
        variables = metric.variables
        if not all(_is_shared(variable.value) for variable in variables):
            original(*args, **kwargs)
            return
        before = [tf.convert_to_tensor(variable.value) for variable in variables]
        with keras.StatelessScope(state_mapping=list(zip(variables, before))) as scope:
            original(*args, **kwargs)
        for variable, old in zip(variables, before):
            new = scope.get_current_value(variable)
            if new is not None and new is not old:
                variable.value.assign_add(tf.cast(new, old.dtype) - old)

    metric.update_state = update_state


def _is_shared(value: Any) -> bool:
    """Whether this is a variable, not the tensor that Keras has in its place to learn shapes."""
    return isinstance(value, tf.Variable)
