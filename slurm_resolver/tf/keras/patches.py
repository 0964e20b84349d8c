"""The one place that changes Keras and TensorFlow for this package's strategies.

In the steps of a `MultiWorkerMirroredStrategy` (see `losses` and `metrics`):

| changed | so that | unnecessary once |
|---|---|---|
| `GradientTape.gradient` | gradients are means over all replicas' rows | Keras does |
| `(un)scale_loss_for_distribution` | losses are not scaled for a sum of gradients | the same |
| `Optimizer._all_reduce_sum_gradients` | gradients are not added up once more | the same |
| `LossScaleOptimizer._tf_apply` | replicas with equal gradients take one branch | the same |
| `Loss.__call__`, `reduce_weighted_values` | losses that are no means see all rows | Keras does |
| `CompileLoss.call`, `_aggregate_additional_loss` | the same | the same |
| metrics' `update_state`, `result` | results are those of all rows | the same |
| `SeedGenerator.next` | replicas draw different masks from equal seeds | Keras does |
| `Layer.add_loss` | numbers that layers add are examined (`row_means`) | they count as means |
| `call` of BatchNormalization and dropout, `Optimizer.apply` | steps can be examined | the same |
| `capture_call_time_value` of a condition's graph | collectives run in it | TensorFlow does |

In models under any strategy of this package, outside of steps:

| changed | so that | unnecessary once |
|---|---|---|
| `make_train_function` and the like | a strategy makes the functions | steps know their rows |
| `_maybe_symbolic_build` | models without `call()` train, no batch is lost | Keras does |
| `fit`, `evaluate`, `predict` | all workers do the same, and fail together | never |
| `compile` | variables are made in the model's scope | Keras enters it |
| `save`, `save_weights`, `export` | one worker writes | never |
| `get_metrics_result`, `Variable.assign_add` | a coordinator's workers lose no count | never |
| `DistributedVariable.__int__`, `__float__` | `float(learning_rate)` works | TensorFlow does |
"""

from __future__ import annotations

import functools
import sys
from typing import Any, Callable, Dict, Iterator, Optional

import tensorflow as tf
from tensorflow.python.distribute import values
from tensorflow.python.framework import func_graph
from tensorflow.python.ops import control_flow_v2_func_graphs

from slurm_resolver.preflight.keras_version import keras_problem
from slurm_resolver.startup import when_imported
from slurm_resolver.tf.keras import losses, metrics
from slurm_resolver.tf.keras.agreement import call_together
from slurm_resolver.tf.keras.calls import strategies
from slurm_resolver.tf.keras.coordinated_steps import let_additions_be_atomic
from slurm_resolver.tf.keras.saving import save_once
from slurm_resolver.tf.keras.step import Step, current_step

Method = Callable[..., Any]

# Layers whose rows depend in training on other rows, or on random numbers.
_TRAINING_APART = (
    *("BatchNormalization", "Dropout", "AlphaDropout"),
    *("GaussianDropout", "GaussianNoise"),
)
_CONTAINERS = ("CompileMetrics", "MetricsList")
_WITH_SAVE_MODEL = ("keras.saving", "keras.models", "keras._tf_keras.keras.saving")


def prepare(strategy: Any) -> None:
    """Lets Keras 3's models train, evaluate and predict under a strategy of this package."""
    strategies.add(strategy)
    when_imported("keras", _patch)


@functools.cache  # once
def _patch(keras: Any) -> None:
    if keras.__version__.startswith("2."):
        return
    if keras_problem(keras.__version__):  # several workers refuse it, one trains as Keras does
        for name in ("fit", "evaluate", "predict"):
            _wrap(keras.Model, name, _call_together(name))
        return
    _let_collectives_run_in_loops()
    _patch_models(keras)
    _patch_steps(keras)
    let_additions_be_atomic(keras.Variable)
    values.DistributedVariable.__float__ = lambda self: float(self.numpy())
    values.DistributedVariable.__int__ = lambda self: int(self.numpy())


def _patch_models(keras: Any) -> None:
    """Changes what models do outside of steps."""
    replacements: Dict[str, Callable[..., Any]] = {
        "compile": _compile_in_scope,
        "get_metrics_result": _metrics_when_steps_are_done,
        "_maybe_symbolic_build": _build_by_first_step,
    }
    for name in ("fit", "evaluate", "predict"):
        replacements[name] = _call_together(name)
    for name in ("save", "save_weights", "export"):
        replacements[name] = functools.partial(save_once, name)
    for kind in ("train", "test", "predict"):
        replacements[f"make_{kind}_function"] = _make_function(kind)
    for name, replacement in replacements.items():
        # Where it is defined: Keras asks whether a model's class overrides `compile`.
        owner = next(base for base in keras.Model.__mro__ if name in vars(base))
        _wrap(owner, name, replacement)
    # The function by which Keras 2's programs save.
    save_model: Any = keras.saving.save_model
    for module in map(sys.modules.get, _WITH_SAVE_MODEL):
        if module is not None and vars(module).get("save_model") is save_model:
            _wrap(module, "save_model", functools.partial(save_once, "save"))


def _patch_steps(keras: Any) -> None:
    """Changes what Keras does within a step of all workers."""
    from keras.src.backend.tensorflow import optimizer as tensorflow_optimizer
    from keras.src.backend.tensorflow import trainer
    from keras.src.losses import loss as loss_module
    from keras.src.optimizers import base_optimizer, loss_scale_optimizer
    from keras.src.trainers import compile_utils

    _in_steps(tf.GradientTape, "gradient", losses.gradient)
    _in_steps(loss_module, "scale_loss_for_distribution", _as_given)
    _in_steps(loss_module, "unscale_loss_for_distribution", _as_given)
    _in_steps(loss_module, "reduce_weighted_values", losses.reduce_weighted_values)
    _in_steps(keras.losses.Loss, "__call__", losses.loss)
    _in_steps(compile_utils.CompileLoss, "call", losses.compiled_loss)
    _in_steps(trainer.TensorFlowTrainer, "_aggregate_additional_loss", losses.additional_loss)
    _in_steps(tensorflow_optimizer.TFOptimizer, "_all_reduce_sum_gradients", _as_given)
    _in_steps(loss_scale_optimizer.LossScaleOptimizer, "_tf_apply", _apply_scaled)
    _in_steps(keras.random.SeedGenerator, "next", _next_seed)
    _in_steps(keras.layers.Layer, "add_loss", losses.note_added)
    for name in _TRAINING_APART:
        _in_steps(getattr(keras.layers, name), "call", _call_in_training)
    for kind in (base_optimizer.BaseOptimizer, loss_scale_optimizer.LossScaleOptimizer):
        _in_steps(kind, "apply", _apply)


def _wrap(owner: Any, name: str, replacement: Callable[..., Any]) -> None:
    """Lets `replacement(original, …)` be called instead."""
    original = getattr(owner, name)

    @functools.wraps(original)
    def wrapped(*args: Any, **kwargs: Any) -> Any:
        return replacement(original, *args, **kwargs)

    setattr(owner, name, wrapped)


def _call_together(name: str) -> Method:
    def call(original: Method, model: Any, *args: Any, **kwargs: Any) -> Any:
        return call_together(name, functools.partial(original, model), model, args, kwargs)

    return call


def _make_function(kind: str) -> Method:
    made = f"{kind}_function"

    def make_function(original: Method, model: Any, force: bool = False) -> Any:
        if model.distribute_strategy not in strategies:
            return original(model, force)
        if force or getattr(model, made) is None:
            setattr(model, made, model.distribute_strategy.make_function(model, kind))
        return getattr(model, made)

    return make_function


def _compile_in_scope(original: Method, model: Any, *args: Any, **kwargs: Any) -> Any:
    if model.distribute_strategy not in strategies:
        return original(model, *args, **kwargs)
    with model.distribute_strategy.scope():
        return original(model, *args, **kwargs)


def _metrics_when_steps_are_done(original: Method, model: Any) -> Any:
    """Waits for the steps that a coordinator has scheduled."""
    in_a_step = tf.distribute.has_strategy() and not tf.distribute.in_cross_replica_context()
    if model.distribute_strategy in strategies and not in_a_step:
        for function in (model.train_function, model.test_function):
            if hasattr(function, "join"):  # a coordinator's, or what BackupAndResume puts there
                function.join()
    return original(model)


def _build_by_first_step(original: Method, model: Any, *args: Any, **kwargs: Any) -> None:
    """Builds nothing where each worker's first step does.

    Keras would draw batches from the data, and call the model, which may have no `call()`.
    """
    if not hasattr(model.distribute_strategy, "sharing"):
        original(model, *args, **kwargs)


def patch_metrics(keras: Any) -> None:
    """Changes what the classes of metrics do within a step, those made meanwhile too."""
    for kind in _subclasses(keras.metrics.Metric):
        if kind.__name__ in _CONTAINERS and kind.__module__.startswith("keras."):
            continue
        for name, replacement in metrics.REPLACEMENTS.items():
            if name in vars(kind) and not hasattr(vars(kind)[name], "_in_steps"):
                _in_steps(kind, name, *replacement)


def _in_steps(
    owner: Any, name: str, replacement: Callable[..., Any], outside: Optional[Method] = None
) -> None:
    """Lets `replacement(step, original, …)` be called in steps.

    Elsewhere `outside(original, …)` is called, if given.
    """
    original = vars(owner)[name]

    @functools.wraps(original)
    def wrapped(*args: Any, **kwargs: Any) -> Any:
        step = current_step()
        if step is not None:
            return replacement(step, original, *args, **kwargs)
        return outside(original, *args, **kwargs) if outside else original(*args, **kwargs)

    setattr(wrapped, "_in_steps", True)  # noqa: B010 (mypy knows no such attribute)
    setattr(owner, name, wrapped)


def _subclasses(kind: Any) -> Iterator[Any]:
    yield kind
    for subclass in kind.__subclasses__():
        yield from _subclasses(subclass)


def _let_collectives_run_in_loops() -> None:
    """Lets a collective run in a condition within a loop, as ``steps_per_execution`` needs.

    TensorFlow numbers every collective when the outermost function is called, through a placeholder
    in the graph of the caller. In the graph of a condition or of a loop's body, nobody feeds it
    (tensorflow/python/framework/func_graph.py, `capture_call_time_value`).
    """
    name = "capture_call_time_value"
    graph_type = getattr(control_flow_v2_func_graphs, "ControlFlowFuncGraph", None)
    if graph_type is None or name in vars(graph_type) or not hasattr(func_graph.FuncGraph, name):
        return  # another TensorFlow

    def capture_call_time_value(self: Any, *args: Any, **kwargs: Any) -> Any:
        outer = self.outer_graph
        with outer.as_default():
            return outer.capture_call_time_value(*args, **kwargs)

    setattr(graph_type, name, capture_call_time_value)


def _as_given(step: Step, original: Method, *args: Any) -> Any:
    return args[-1]


def _apply_scaled(
    step: Step, original: Method, optimizer: Any, grads: Any, trainable_variables: Any = None
) -> None:
    """Applies in a condition, as everywhere but under TensorFlow's strategies."""
    if len(step.model.distribute_strategy.extended.worker_devices) > 1:
        original(optimizer, grads, trainable_variables)  # a condition cannot merge replicas
    else:
        optimizer._common_apply(grads, trainable_variables=trainable_variables)


def _next_seed(step: Step, original: Method, generator: Any, *args: Any, **kwargs: Any) -> Any:
    seed = original(generator, *args, **kwargs)
    if isinstance(step.draw, int) and step.draw == 0:
        return seed
    return seed + tf.cast(tf.stack([1_000_003 * step.draw, 0]), seed.dtype)


def _call_in_training(
    step: Step, original: Method, layer: Any, inputs: Any, training: Any = None, **kwargs: Any
) -> Any:
    """Gives each row what it has in inference where the step is only examined."""
    training = training if step.examined is None else False
    return original(layer, inputs, training=training, **kwargs)


def _apply(step: Step, original: Method, optimizer: Any, *args: Any, **kwargs: Any) -> Any:
    """Changes no weight where the step is only examined."""
    return original(optimizer, *args, **kwargs) if step.examined is None else None
