"""Checks that all workers call Keras 3's `fit`, `evaluate` and `predict` with equal arguments."""

from __future__ import annotations

import contextlib
import functools
import inspect
import json
import sys
import zlib
from typing import Any, Callable, Dict, List, NamedTuple, Optional, Sequence

import tensorflow as tf

from slurm_resolver.errors import FitError
from slurm_resolver.log import warn_once
from slurm_resolver.preflight.keras_version import check_keras
from slurm_resolver.tf.keras import are_several, borrowed, strategies
from slurm_resolver.tf.keras.comparison import by_worker
from slurm_resolver.tf.keras.configuration import describe_model
from slurm_resolver.tf.keras.custom_functions import check_functions
from slurm_resolver.tf.keras.drift import Drift, compare_entries, digest_of
from slurm_resolver.tf.keras.file_callbacks import listed, one_writer, writing
from slurm_resolver.tf.progress import meeting, reporting

SCOPE = (
    "Build and compile the model in `with strategy.scope():`, and make its optimizer there as well."
)
# Arguments that may differ between workers, and parts of `compile` that must not.
_OWN = ("verbose", "callbacks", "kwargs")
_COMPILED = ("loss", "metrics", "weighted_metrics", "steps_per_execution")


def call_together(
    name: str, original: Callable[..., Any], model: Any, /, *args: Any, **kwargs: Any
) -> Any:
    """Calls a model's `fit`, `evaluate` or `predict`, which all workers must call alike.

    Raises:
        FitError: in every worker, if the calls differ, or if one worker fails.
        KerasError: for a version of Keras that would train wrongly.
    """
    method = functools.partial(original, model)
    strategy = model.distribute_strategy
    if strategy not in strategies:
        _check_scope(name, model)
        return method(*args, **kwargs)
    check_version(strategy)
    check_functions(name, model)
    workers = getattr(strategy, "workers", None)  # None where the strategy coordinates them
    if workers is None and name == "fit":
        _check_training(strategy, model, "under ParameterServerStrategy. Leave it out.")
    if workers is None or not strategy.of_several:
        return method(*args, **kwargs)
    if workers.call:
        workers.exchange(f"calls {name} within {workers.call}", None)
        return method(*args, **kwargs)
    try:
        bound = inspect.signature(method).bind(*args, **kwargs)
    except TypeError:
        return method(*args, **kwargs)  # which says what is wrong with them
    bound.apply_defaults()
    arguments = bound.arguments
    _check_model(strategy, model, name)
    if name == "fit" and model.compiled and model.jit_compile:
        warn_once("jit_compile=True has no effect: XLA cannot compile steps of several workers")
        model.jit_compile = False
    callbacks = arguments.get("callbacks")
    paths = [[kind, path] for kind, path, _ in writing(callbacks)]
    entries = describe_model(model) if name == "fit" else []
    given = listed(callbacks)
    with meeting(name):
        own = Call(
            task=_task(model, arguments),
            configuration=zlib.crc32(repr(entries).encode()),
            weights=digest_of(model),
            callbacks=sorted({type(callback).__name__ for callback in given}),
            restoring=sorted(_restoring(given)),
            paths=paths,
        )
        calls = [Call(*each) for each in workers.exchange(f"calls {name}", own)]
    _check_agreement(name, workers.names, [each.task for each in calls])
    if len({each.configuration for each in calls}) > 1:
        compare_entries(workers, name, entries)
    if name == "fit":
        _check_callbacks(workers.names, [each.restoring for each in calls])
    drift = Drift(workers, model, [each.callbacks for each in calls])
    drift.compare([each.weights for each in calls], f"before {name}")
    alone = one_writer(callbacks, workers, [each.paths for each in calls])
    drift.watch(arguments)
    with reporting(name, arguments), workers.failing_together(name), alone:
        return method(*bound.args, **bound.kwargs)


class Call(NamedTuple):
    """What a worker tells the others of its call."""

    task: Dict[str, Any]  # its arguments, in words
    configuration: int  # a digest
    weights: int  # a digest
    callbacks: List[str]  # their kinds
    restoring: List[str]  # the kinds of those that restore a training
    paths: List[List[str]]  # the kinds and paths of callbacks that write files


def _restoring(callbacks: Sequence[Any]) -> List[str]:
    """Returns the kinds of the callbacks that restore a training, which all workers do together."""
    restores = sys.modules["keras"].callbacks.BackupAndRestore
    return [
        type(callback).__name__
        for callback in callbacks
        if isinstance(callback, restores) or getattr(callback, "restores_all_workers", False)
    ]


def _check_callbacks(names: Sequence[str], kinds: Sequence[List[str]]) -> None:
    """Raises FitError in every worker if a callback that all workers need is missing in one."""
    for kind in sorted(set().union(*kinds)):
        has = [kind if kind in own else f"no {kind}" for own in kinds]
        if len(set(has)) > 1:
            raise FitError(
                f"fit needs the callback {kind} in all workers or in none: "
                f"{by_worker(names, has)}. It saves and restores the training of all workers."
            )


def check_version(strategy: Any) -> None:
    """Raises KerasError if the Keras of this process would train wrongly on several replicas."""
    if strategy.of_several:
        check_keras()
    if strategy.of_several or strategy.num_replicas_in_sync > 1:
        borrowed.check_fit()


def call_on_batch(
    name: str, original: Callable[..., Any], model: Any, /, *args: Any, **kwargs: Any
) -> Any:
    """Calls `train_on_batch`, `test_on_batch` or `predict_on_batch` of a model.

    Raises:
        FitError: in every worker, if each of them would compute the batch alone.
    """
    if model.distribute_strategy in strategies:
        check_version(model.distribute_strategy)
        check_functions(name, model)
    else:
        _check_scope(name, model)
    return original(model, *args, **kwargs)


def _check_scope(name: str, model: Any) -> None:
    """Raises FitError if a method would train a model that is in the scope of no strategy."""
    strategy = model.distribute_strategy
    default = not tf.distribute.has_strategy() and strategy is tf.distribute.get_strategy()
    if name in ("fit", "train_on_batch") and are_several() and default:
        raise FitError(
            f"{name} of {model.name!r}, a model that was built outside strategy.scope(): this "
            f"process would train it alone, on all of the data. {SCOPE} To train one alone on "
            'purpose, build it in the scope of a tf.distribute.OneDeviceStrategy("/cpu:0").'
        )


def _check_model(strategy: Any, model: Any, call: str) -> None:
    """Raises FitError for what cannot be computed, or what TensorFlow refuses without naming it."""
    for layer in borrowed.FLATTEN_LAYERS.of(model)():
        if getattr(layer, "stateful", False) is True and strategy.sharing.replicas > 1:
            raise FitError(
                f"the layer {layer.name!r} is stateful: it has a state for each row of a batch, of "
                "which each worker computes a part. Leave stateful=True out, or use one process."
            )
    if call == "fit":
        several = strategy.sharing.local > 1
        gpus = f"with {strategy.sharing.local} GPUs in a task. Start a task for each GPU."
        _check_training(strategy, model, gpus if several else "")


def _check_training(strategy: Any, model: Any, obstacle: str) -> None:
    """Raises FitError for variables made elsewhere, and for options that `obstacle` rules out."""
    optimizer = getattr(model, "optimizer", None)  # Keras says that `compile` was not called
    of_optimizer = getattr(optimizer, "variables", ())
    for owner, variables in (("model", model.weights), ("optimizer", of_optimizer)):
        for variable in variables:
            if not strategy.extended.variable_created_in_scope(variable.value):
                raise FitError(
                    f"fit of {model.name!r}: the variable {variable.path!r} of its {owner} was "
                    f"made outside strategy.scope(). {SCOPE}"
                )
    for name in ("gradient_accumulation_steps", "ema_overwrite_frequency"):
        value = getattr(optimizer, name, None)
        if value and obstacle:
            raise FitError(
                f"fit of {model.name!r}: its optimizer has {name}={value}, which TensorFlow cannot "
                f"do {obstacle}"
            )


def _task(model: Any, arguments: Dict[str, Any]) -> Dict[str, Any]:
    """Describes the call, for the comparison; None stands for an unknown value."""
    data = {"x": "steps_per_epoch" if "epochs" in arguments else "steps"}
    data["validation_data"] = "validation_steps"
    task = {
        name: _describe(value, arguments.get(data.get(name, "")))
        for name, value in arguments.items()
        if name not in _OWN
    }
    task["optimizer"] = type(getattr(model, "optimizer", None)).__name__
    with contextlib.suppress(Exception):  # not everything that is compiled can be described
        compiled = model.get_compile_config()
        # unlike an object's text, its type's name contains no address
        for what in _COMPILED:
            task[what] = json.dumps(compiled.get(what), default=lambda value: type(value).__name__)
    return task


def _describe(value: Any, steps: Any) -> Optional[str]:
    """Describes a number, or how much data there is, which has to be the same in all workers."""
    if isinstance(value, tf.data.Dataset):
        sharding = value.options().experimental_distribute.auto_shard_policy
        cardinality = int(value.cardinality())
        # With OFF, each worker has its own data, and takes the same number of steps.
        of_its_own = steps and sharding == tf.data.experimental.AutoShardPolicy.OFF
        if of_its_own or cardinality == tf.data.UNKNOWN_CARDINALITY:
            return None
        return "endless" if cardinality < 0 else f"{cardinality} batches"
    part: Any = next(iter(tf.nest.flatten(value)), None)
    if part is None or isinstance(part, (int, float, str)):
        return str(part)
    if getattr(part, "shape", None):
        return f"{part.shape[0]} rows"
    return f"{part.num_batches} batches" if hasattr(part, "num_batches") else None


def _check_agreement(call: str, names: Sequence[str], tasks: Sequence[Dict[str, Any]]) -> None:
    """Raises the same FitError in every worker if the calls of two workers differ."""
    for name, task in zip(names, tasks):
        for what, value in tasks[0].items():
            if None not in (value, task.get(what)) and task[what] != value:
                raise FitError(
                    f"{call} differs from worker to worker, in "
                    f"{'the data' if what == 'x' else what}: {value} in {names[0]}, {task[what]} "
                    f"in {name}. Expected the same program in every worker, with the same data, of "
                    "which each takes its share. Data that each worker has of its own "
                    "(AutoShardPolicy.OFF) needs steps_per_epoch."
                )
