"""TensorFlow's MultiWorkerMirroredStrategy, under which Keras 3's `fit` trains as in one process.

Keras 3 asks the strategy for three things that TensorFlow's class does not do on several workers.
docs/keras.md shows each with a minimal program.
"""

from __future__ import annotations

import sys
import weakref
from typing import Any, Callable, Dict, List, Optional, Tuple

import tensorflow as tf

from slurm_resolver.cluster.data_service import DATA_JOBS
from slurm_resolver.errors import JobsError
from slurm_resolver.preflight import keras_version
from slurm_resolver.tf import keras_model
from slurm_resolver.tf.exchange import Workers
from slurm_resolver.tf.keras_calls import called_by_keras
from slurm_resolver.tf.resolver import SlurmClusterResolver

Step = Callable[..., Any]


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

    The batch size of the dataset is the global one, as in TensorFlow: each worker takes its share.
    Weights, history, evaluation and prediction are those of one process that trains on the same
    batches. The statistics of BatchNormalization are the mean of all workers' after each step, so
    that every worker may save the model. Loops of one's own and tf_keras work as under
    TensorFlow's class.
    """

    def __init__(
        self,
        cluster_resolver: Optional[Any] = None,
        communication_options: Optional[Any] = None,
    ) -> None:
        """Starts this worker's server, and waits until all workers have done so.

        Make it before TensorFlow does anything else, such as making a dataset: afterwards
        TensorFlow raises RuntimeError ("Collective ops must be configured at program startup").

        Args:
            cluster_resolver: None makes a `SlurmClusterResolver()`.
            communication_options: a `tf.distribute.experimental.CommunicationOptions`.

        Raises:
            JobsError: in a task that does not train: a parameter server, an evaluator, one of a
                tf.data service.
        """
        if cluster_resolver is None:
            cluster_resolver = SlurmClusterResolver()
        _check_job(cluster_resolver)
        _let_collectives_run_in_loops()
        # The results of the last step that are the mean of all workers' already, by id.
        self._averaged: Dict[int, weakref.ref[Any]] = {}
        super().__init__(cluster_resolver, communication_options)
        self.workers = Workers(self)
        if len(self.workers.names) > 1:
            keras_model.prepare(self)

    def run(
        self,
        fn: Step,
        args: Tuple[Any, ...] = (),
        kwargs: Optional[Dict[str, Any]] = None,
        options: Optional[Any] = None,
    ) -> Any:
        """Runs `fn` on each replica, as TensorFlow's does.

        A step of Keras 3 also averages its metrics and the statistics of BatchNormalization, all
        in one collective.
        """
        model = _model_of_step(fn)
        if model is None or self.num_replicas_in_sync == 1:
            return super().run(fn, args, kwargs, options)
        statistics = _statistics(model) if fn.__name__ == "train_step" else []

        def step(*args: Any, **kwargs: Any) -> Any:
            return _average(fn(*args, **kwargs), statistics)

        outputs = super().run(step, args, kwargs, options)
        leaves = [value for value in tf.nest.flatten(outputs) if _is_metric(self._own(value))]
        self._averaged = {id(value): weakref.ref(value) for value in leaves}
        return outputs

    def reduce(self, reduce_op: Any, value: Any, axis: Optional[int]) -> Any:
        """Returns what the replicas' values make together, as TensorFlow's does.

        In addition it takes what Keras 3 gives it:

        - A whole batch (a tuple or a dict), to learn its shapes: the answer is this worker's part.
        - A scalar with ``axis=0``: there is no such axis, and the mean is that of the replicas.
        """
        if (value is None or isinstance(value, (tuple, list, dict))) and called_by_keras():
            keras_version.check_keras()
            return tf.nest.map_structure(self._own, value)
        if axis is not None and self._own(value).shape.rank == 0:
            averaged = self._averaged.get(id(value))
            if averaged is not None and averaged() is value:
                return self._own(value)
            axis = None
        return super().reduce(reduce_op, value, axis)

    def experimental_distribute_dataset(self, dataset: Any, options: Optional[Any] = None) -> Any:
        """Shares a dataset out among the workers, as TensorFlow's does.

        TensorFlow leaves a dataset that is made of a Python generator, as Keras makes one of a
        PyDataset, whole in every worker. Here each takes its share of every batch; all workers
        have to generate the same.
        """
        policy = tf.data.experimental.AutoShardPolicy
        auto = dataset.options().experimental_distribute.auto_shard_policy == policy.AUTO
        if auto and _is_generated(dataset):
            sharded = tf.data.Options()
            sharded.experimental_distribute.auto_shard_policy = policy.DATA
            dataset = dataset.with_options(sharded)
        return super().experimental_distribute_dataset(dataset, options)

    def _own(self, value: Any) -> Any:
        """Returns the value of this worker's first replica."""
        return self.experimental_local_results(value)[0]


def _check_job(resolver: Any) -> None:
    job = resolver.task_type
    if job in ("ps", "evaluator", *DATA_JOBS):
        serve = "Call sys.exit(resolver.serve()) there, before the strategy is made"
        instead = dict.fromkeys(("ps", *DATA_JOBS), serve)
        instead["evaluator"] = "Evaluate there alone, without a strategy"
        raise JobsError(
            f"MultiWorkerMirroredStrategy in {job} {resolver.task_id}; expected a chief or a "
            f"worker, which train. {instead[job]}: if resolver.task_type == {job!r}: …"
        )


def _model_of_step(fn: Step) -> Optional[Any]:
    """Returns the Keras 3 model whose step this is; None for any other function."""
    model = getattr(fn, "__self__", None)
    keras = sys.modules.get("keras")
    if model is None or keras is None or fn.__name__ not in ("train_step", "test_step"):
        return None
    return model if isinstance(model, keras.Model) else None


def _statistics(model: Any) -> List[Any]:
    """Returns the variables that each worker updates from its own part of the batch.

    These are the floating-point variables that are made for no optimizer to train, such as the
    moving averages of BatchNormalization. Weights that are frozen have been made to be trained.
    """
    return [
        variable
        for variable in model.non_trainable_variables
        if tf.as_dtype(variable.dtype).is_floating
        and not variable.value.trainable
        and variable.value.synchronization != tf.VariableSynchronization.ON_READ
    ]


def _is_metric(value: Any) -> bool:
    return isinstance(value, tf.Tensor) and value.shape.rank == 0 and value.dtype.is_floating


def _as_tensor(value: Any) -> Any:
    """Returns a number that a step of one's own gives as the tensor that TensorFlow makes of it."""
    return tf.convert_to_tensor(value) if isinstance(value, (int, float)) else value


def _average(outputs: Any, statistics: List[Any]) -> Any:
    """Returns a step's outputs with the mean of all replicas' metrics, and averages the statistics.

    Called on each replica. One collective for each type takes them all.
    """
    leaves = [_as_tensor(value) for value in tf.nest.flatten(outputs)]
    places = [place for place, value in enumerate(leaves) if _is_metric(value)]
    values = [leaves[place] for place in places]
    values += [tf.convert_to_tensor(variable.value) for variable in statistics]
    means = _means(values)
    for place, mean in zip(places, means):
        leaves[place] = mean
    for variable, mean in zip(statistics, means[len(places) :]):
        variable.assign(mean)
    return tf.nest.pack_sequence_as(outputs, leaves)


def _means(values: List[Any]) -> List[Any]:
    """Returns the means over all replicas of tensors whose shapes are known."""
    replica = tf.distribute.get_replica_context()
    means: List[Any] = [None] * len(values)
    for dtype in {value.dtype for value in values}:
        places = [place for place, value in enumerate(values) if value.dtype == dtype]
        packed, unpack = _pack([values[place] for place in places])
        mean = replica.all_reduce(tf.distribute.ReduceOp.MEAN, packed)
        for place, part in zip(places, unpack(mean)):
            means[place] = part
    return means


def _pack(values: List[Any]) -> Tuple[Any, Callable[[Any], List[Any]]]:
    """Returns tensors of one type as a vector, and what makes them of such a vector again."""
    shapes = [value.shape for value in values]
    if not any(shape.rank for shape in shapes):  # metrics alone, in fewer operations
        return tf.stack(values), tf.unstack
    flat = tf.concat([tf.reshape(value, [-1]) for value in values], axis=0)
    sizes = [shape.num_elements() for shape in shapes]
    return flat, lambda mean: list(map(tf.reshape, tf.split(mean, sizes), shapes))


def _is_generated(dataset: Any) -> bool:
    """Whether a dataset's source is a Python generator, from which AUTO does not share out."""
    serialize = getattr(dataset, "_as_serialized_graph", None)
    if serialize is None:
        return False
    graph = serialize(external_state_policy=tf.data.experimental.ExternalStatePolicy.IGNORE)
    return b"GeneratorDataset" in graph.numpy()


def _let_collectives_run_in_loops() -> None:
    """Lets a tf.function with a collective be called in a loop of another one.

    Keras 3 does that with ``steps_per_execution``. TensorFlow numbers every collective when the
    outermost function is called, through a placeholder in the graph of the caller; in the graph of
    a loop's body nobody feeds it (tensorflow/python/framework/func_graph.py,
    `capture_call_time_value`). It belongs into the graph of the function around the loop.
    """
    from tensorflow.python.framework import func_graph
    from tensorflow.python.ops import control_flow_v2_func_graphs

    name = "capture_call_time_value"
    graph_type = getattr(control_flow_v2_func_graphs, "ControlFlowFuncGraph", None)
    if graph_type is None or name in vars(graph_type) or not hasattr(func_graph.FuncGraph, name):
        return  # another TensorFlow, or already done

    def capture_call_time_value(self: Any, *args: Any, **kwargs: Any) -> Any:
        outer = self.outer_graph
        with outer.as_default():
            return outer.capture_call_time_value(*args, **kwargs)

    setattr(graph_type, name, capture_call_time_value)
