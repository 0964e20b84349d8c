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

from slurm_resolver.tf.keras.functions import as_tensor, compiled
from slurm_resolver.tf.keras.patches import patch_metrics
from slurm_resolver.tf.keras.sharing import without_optionals

# How many batches of the chief may be under way for each worker: enough that none of them waits.
_AHEAD = 4
# Into how many parts for each worker an execution of several steps is divided.
_PARTS = 4
# How often a prediction is asked for where workers are lost.
_ATTEMPTS = 3


class _Scheduler:
    """Schedules a model's step on the workers."""

    def __init__(self, model: Any, kind: str) -> None:
        import keras

        patch_metrics(keras)
        self._model = model
        self._strategy = model.distribute_strategy
        self._workers = self._strategy.num_workers
        self._coordinator = self._strategy.coordinator()
        self._step = getattr(model, f"{kind}_step")
        self._on_batch = compiled(model, self._run)

    def _run(self, batch: Any) -> Any:
        return tf.nest.map_structure(as_tensor, self._strategy.run(self._step, args=(batch,)))

    def _schedule(self, function: Callable[..., Any], *args: Any) -> Any:
        """Has a worker run a function, and returns what stands for its result."""
        with _told_where_data_ends():
            return self._coordinator.schedule(function, args)


class StepFunction(_Scheduler):
    """A model's `train_function` or `test_function`."""

    def __init__(self, model: Any, kind: str) -> None:
        super().__init__(model, kind)
        self._trains = kind == "train"
        self._on_iterator = compiled(model, self._run_several)
        self._under_way: Deque[Any] = deque()
        self._logs: Dict[str, Any] = {}

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
        begun = False
        for _, batch in zip(range(count), iterator):
            begun = True
            if len(self._under_way) >= _AHEAD * self._workers:
                self._take_logs(self._under_way.popleft())
            self._under_way.append(self._schedule(self._on_batch, without_optionals(batch)))
        if not begun:
            raise StopIteration

    def _schedule_shares(self, iterator: Any, count: int) -> None:
        parts = min(count, _PARTS * self._workers)
        for part in range(parts):
            steps = count * (part + 1) // parts - count * part // parts
            self._under_way.clear()
            self._under_way.append(self._schedule(self._on_iterator, iterator, tf.constant(steps)))

    def _run_several(self, iterator: Any, count: Any) -> Any:
        """Runs several steps on batches that the worker reads itself."""
        outputs = self._run(next(iterator))

        def again(done: Any, _: Any) -> Any:
            return done + 1, self._run(next(iterator))

        return tf.while_loop(lambda done, _: done < count, again, (1, outputs))[1]

    def _take_logs(self, remote: Any) -> None:
        try:
            self._logs.update(remote.fetch())
        except tf.errors.OpError:
            # Where a step has failed, this raises its error; else only this worker was lost, which
            # had done the step, and the logs of another one will do.
            with _told_where_data_ends():
                self._coordinator.join()


class PredictFunction(_Scheduler):
    """A model's `predict_function`: takes a list of batches, and returns their outputs.

    The workers predict as many batches at once as `steps_per_execution` says.
    """

    def __call__(self, batches: List[Any]) -> Any:
        """Returns the outputs for all rows of some batches, in their order."""
        for attempt in range(_ATTEMPTS):
            remotes = [self._schedule(self._on_batch, without_optionals(one)) for one in batches]
            try:
                outputs = [remote.get() for remote in remotes]
                break
            except tf.errors.UnavailableError:  # a worker is lost with what it has predicted
                if attempt == _ATTEMPTS - 1:
                    raise
        return tf.nest.map_structure(lambda *parts: tf.concat(parts, axis=0), *outputs)


@contextlib.contextmanager
def _told_where_data_ends() -> Iterator[None]:
    try:
        yield
    except tf.errors.OutOfRangeError as error:
        raise ValueError(
            "a worker's dataset has ended before the steps of fit; expected one without an end: "
            "let dataset_fn return dataset.repeat()"
        ) from error
