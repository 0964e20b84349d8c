"""The values of metrics in the middle of an epoch: each replica has its own."""

from __future__ import annotations

from typing import Any, Callable, List

import numpy as np
import tensorflow as tf


class MetricState:
    """The metrics of a model, whose variables are sums of parts that lie in the replicas.

    Read together the parts would be added up, and another split of the sum has other last digits.

    Attributes:
        variables: of the metrics.
    """

    def __init__(self, strategy: tf.distribute.Strategy, variables: List[tf.Variable]) -> None:
        self._strategy = strategy
        self.variables = variables
        self._read = self._on_replicas(self._own_values)

    def read(self) -> Any:
        """Returns each replica's values, one after the other as float64, without communication."""
        return self._read()

    def gather(self, values: Any) -> np.ndarray:
        """Returns what `read` returned, of all replicas in all workers: [replicas, numbers]."""
        rows: np.ndarray = self._strategy.gather(values, axis=0).numpy()
        return rows

    def assign(self, rows: np.ndarray) -> bool:
        """Gives each replica its values again; returns False if the model has other metrics.

        With another number of replicas the first one gets the sum.
        """
        sizes = [variable.shape.num_elements() for variable in self.variables]
        if sum(sizes) != rows.shape[1]:
            return False
        count = self._strategy.num_replicas_in_sync
        if len(rows) != count:
            total = rows.sum(axis=0)
            rows = np.zeros([count, len(total)])
            rows[0] = total

        def own() -> None:
            replica = tf.distribute.get_replica_context().replica_id_in_sync_group
            parts = tf.split(tf.gather(rows, replica), sizes)
            for variable, part in zip(self.variables, parts):
                variable.assign(tf.cast(tf.reshape(part, variable.shape), variable.dtype))

        self._on_replicas(own)()
        return True

    def _own_values(self) -> tf.Tensor:
        flat = [tf.reshape(tf.cast(variable, tf.float64), [-1]) for variable in self.variables]
        return tf.concat([tf.zeros([0], tf.float64), *flat], axis=0)[tf.newaxis]

    def _on_replicas(self, own: Callable[[], Any]) -> Callable[[], Any]:
        """Returns a graph that runs a function on all replicas: TensorFlow warns without one."""
        function: Callable[[], Any] = tf.function(lambda: self._strategy.run(own), autograph=False)
        return function
