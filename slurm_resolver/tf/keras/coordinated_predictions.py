"""Keras 3's predict function for a coordinator: each batch on a free worker.

What it returns stands for the outputs until Keras asks for them, so that the workers predict
further batches meanwhile.
"""

from __future__ import annotations

from collections import deque
from typing import Any, Callable, Deque, List

import tensorflow as tf

from slurm_resolver.tf.keras.calls import without_optionals
from slurm_resolver.tf.keras.coordinated_steps import AHEAD, ScheduledStep

_ATTEMPTS = 3


class PredictFunction(ScheduledStep):
    """A model's `predict_function`."""

    def __init__(self, model: Any) -> None:
        super().__init__(model, model.predict_step, _concatenated)
        self._under_way: Deque[_Prediction] = deque()

    def __call__(self, batches: List[Any]) -> Any:
        """Schedules the prediction of batches, and returns what stands for their outputs."""
        batches = [without_optionals(batch) for batch in batches]
        predictions = [self._predict(batch) for batch in batches]
        with self.strategy.scope():  # as where it was traced
            concrete = self.batch_function.get_concrete_function(batches[0])
        outputs = concrete.structured_outputs
        leaves = tf.nest.flatten(outputs)
        if all(isinstance(leaf, tf.Tensor) for leaf in leaves):
            promised = [_Output(predictions, place) for place in range(len(leaves))]
            return tf.nest.pack_sequence_as(outputs, promised)
        values = [prediction.get() for prediction in predictions]
        return tf.nest.map_structure(lambda *parts: tf.concat(parts, axis=0), *values)

    def _predict(self, batch: Any) -> _Prediction:
        if len(self._under_way) >= AHEAD * self.workers:
            self._under_way.popleft().get()
        prediction = _Prediction(lambda: self.schedule(self.batch_function, batch))
        self._under_way.append(prediction)
        return prediction


class _Prediction:
    """What a worker predicts for a batch."""

    def __init__(self, schedule: Callable[[], Any]) -> None:
        self._schedule = schedule
        self._remote = schedule()
        self._value: Any = None

    def get(self) -> Any:
        """Waits for the worker; where that is lost before its answer is here, asks another one."""
        for attempt in range(_ATTEMPTS):
            if self._remote is None:
                break
            try:
                self._value = self._remote.get()
                self._remote = None  # with what the worker keeps for it
            except tf.errors.UnavailableError:
                if attempt == _ATTEMPTS - 1:
                    raise
                self._remote = self._schedule()
        return self._value


class _Output:
    """One of the outputs of some batches: a tensor once it is asked for."""

    def __init__(self, predictions: List[_Prediction], place: int) -> None:
        self._predictions = predictions
        self._place = place

    def __tf_tensor__(self, dtype: Any = None, name: Any = None) -> Any:
        parts = [tf.nest.flatten(each.get())[self._place] for each in self._predictions]
        value = parts[0] if len(parts) == 1 else tf.concat(parts, axis=0)
        return tf.convert_to_tensor(value, dtype=dtype, name=name)

    def __array__(self, dtype: Any = None, copy: Any = None) -> Any:
        value = self.numpy()
        return value if dtype is None else value.astype(dtype)

    @property
    def shape(self) -> Any:
        return self.__tf_tensor__().shape

    def numpy(self) -> Any:
        """Returns the value as an array, as a tensor's method does."""
        return self.__tf_tensor__().numpy()


def _concatenated(strategy: Any, value: Any) -> Any:
    return tf.concat(strategy.experimental_local_results(value), axis=0)
