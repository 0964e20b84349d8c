"""All workers call Keras 3's `fit`, `evaluate` and `predict` alike.

Before it begins, the workers compare what they are about to do.
"""

from __future__ import annotations

import contextlib
import functools
import inspect
import json
from typing import Any, Callable, Dict, Iterator, Optional, Sequence

import tensorflow as tf

from slurm_resolver.errors import FitError
from slurm_resolver.log import warn_once
from slurm_resolver.preflight.keras_version import check_keras
from slurm_resolver.tf.keras import are_several, strategies
from slurm_resolver.tf.keras.saving import one_writer, written_paths
from slurm_resolver.tf.keras.step import OTHER_BATCH
from slurm_resolver.tf.progress import meeting, reporting

_SCOPE = (
    "Build and compile the model in `with strategy.scope():`, and make its optimizer there as well."
)
# What `fit` and `compile` are given alike in all workers.
_ARGUMENTS = (
    *("batch_size", "epochs", "initial_epoch", "steps_per_epoch", "steps"),
    *("validation_split", "validation_steps", "validation_batch_size", "validation_freq"),
)
_COMPILED = ("loss", "metrics", "weighted_metrics", "steps_per_execution")


def call_together(
    name: str, original: Callable[..., Any], model: Any, /, *args: Any, **kwargs: Any
) -> Any:
    """Calls a model's `fit`, `evaluate` or `predict`, which all workers have to call with the same.

    Raises:
        FitError: in every worker, for what cannot be one training, or when one worker fails.
        KerasError: for a Keras that would train wrongly.
    """
    method = functools.partial(original, model)
    strategy = model.distribute_strategy
    if strategy not in strategies:
        default = not tf.distribute.has_strategy() and strategy is tf.distribute.get_strategy()
        if name == "fit" and are_several() and default:
            raise FitError(
                f"fit of {model.name!r}, a model that was built outside strategy.scope(): this "
                f"process would train it alone, on all of the data. {_SCOPE} To train one alone on "
                'purpose, build it in the scope of a tf.distribute.OneDeviceStrategy("/cpu:0").'
            )
        return method(*args, **kwargs)
    if not strategy.of_several:
        return method(*args, **kwargs)
    check_keras()
    workers = getattr(strategy, "workers", None)  # a coordinator has none
    if workers is None:
        return method(*args, **kwargs)
    if workers.call:
        workers.exchange(f"calls {name} within {workers.call}", None)
        return method(*args, **kwargs)
    try:
        bound = inspect.signature(method).bind(*args, **kwargs)
    except TypeError:
        return method(*args, **kwargs)  # which says what is wrong with them
    arguments = bound.arguments
    if name == "fit":
        _check_variables(strategy, model)
        _check_optimizer(strategy, model)
        if model.jit_compile:
            warn_once("jit_compile=True has no effect: XLA cannot compile steps of several workers")
            model.jit_compile = False
    callbacks = arguments.get("callbacks")
    own = {"task": _task(name, model, arguments), "paths": written_paths(callbacks)}
    with meeting(name):
        told = workers.exchange(f"calls {name}", own)
    _check_agreement(name, workers.names, [each["task"] for each in told])
    writing = one_writer(callbacks, workers, [each["paths"] for each in told])
    with contextlib.ExitStack() as stack:
        reports = reporting(name, arguments)
        for each in (workers.failing_together(name), writing, _naming_other_batches(), reports):
            stack.enter_context(each)
        return method(*bound.args, **bound.kwargs)


@contextlib.contextmanager
def _naming_other_batches() -> Iterator[None]:
    try:
        yield
    except tf.errors.InvalidArgumentError as error:
        if OTHER_BATCH not in str(error):
            raise
        raise FitError(
            f"{OTHER_BATCH}. Expected the same global batches in the same order in every worker, "
            "of which each takes its rows. Seed whatever shuffles or generates the data alike in "
            "all workers, such as keras.utils.set_random_seed(1) and numpy.random.default_rng(1). "
            "Data that each worker has of its own needs AutoShardPolicy.OFF."
        ) from error


def _check_variables(strategy: Any, model: Any) -> None:
    """Raises FitError for a variable made outside the scope; TensorFlow does not say which."""
    optimizer = getattr(model.optimizer, "variables", ())
    for owner, variables in (("model", model.weights), ("optimizer", optimizer)):
        for variable in variables:
            if not strategy.extended.variable_created_in_scope(variable.value):
                raise FitError(
                    f"fit of {model.name!r}: the variable {variable.path!r} of its {owner} was "
                    f"made outside strategy.scope(). {_SCOPE}"
                )


def _check_optimizer(strategy: Any, model: Any) -> None:
    """Raises FitError for what TensorFlow cannot do on several replicas of one worker."""
    if strategy.sharing.local == 1:
        return
    for name in ("gradient_accumulation_steps", "ema_overwrite_frequency"):
        value = getattr(model.optimizer, name, None)
        if value:
            raise FitError(
                f"fit of {model.name!r}: its optimizer has {name}={value}, which TensorFlow cannot "
                f"do with {strategy.sharing.local} GPUs in a task. Start a task for each GPU."
            )


def _task(name: str, model: Any, arguments: Dict[str, Any]) -> Dict[str, Any]:
    """Describes what is to be done, by the name for it; None for what cannot be known."""
    steps = arguments.get("steps_per_epoch" if name == "fit" else "steps")
    task: Dict[str, Any] = {"the data": _size(arguments.get("x"), steps)}
    validation = arguments.get("validation_data")
    held_out = validation[0] if isinstance(validation, tuple) else validation
    task["validation_data"] = "none"
    if validation is not None:
        task["validation_data"] = _size(held_out, arguments.get("validation_steps"))
    for argument in _ARGUMENTS:
        value = arguments.get(argument)
        if value is None or isinstance(value, (int, float, str)):
            task[argument] = str(value)
    task["optimizer"] = type(getattr(model, "optimizer", None)).__name__
    with contextlib.suppress(Exception):  # of what is compiled not all can be described
        compiled = model.get_compile_config()
        task.update({what: json.dumps(compiled.get(what), default=_kind) for what in _COMPILED})
    return task


def _size(data: Any, steps: Any) -> Optional[str]:
    """Describes how much data there is, of which all workers have to have the same."""
    if isinstance(data, tf.data.Dataset):
        sharding = data.options().experimental_distribute.auto_shard_policy
        if steps and sharding == tf.data.experimental.AutoShardPolicy.OFF:
            return None  # each worker has data of its own, of which they take as much
        cardinality = int(data.cardinality())
        known = cardinality != tf.data.UNKNOWN_CARDINALITY
        endless = cardinality == tf.data.INFINITE_CARDINALITY
        return ("endless" if endless else f"{cardinality} batches") if known else None
    for part in tf.nest.flatten(data)[:1]:
        if getattr(part, "shape", None):
            return f"{part.shape[0]} rows"
        if hasattr(part, "num_batches"):
            return f"{part.num_batches} batches"
    return None


def _kind(value: Any) -> str:
    return type(value).__name__  # other than its text, it has no address


def _check_agreement(call: str, names: Sequence[str], tasks: Sequence[Dict[str, Any]]) -> None:
    """Raises FitError, the same in every worker, where two of them differ."""
    for what, value in tasks[0].items():
        for name, task in zip(names, tasks):
            other = task.get(what)
            if None not in (value, other) and other != value:
                raise FitError(
                    f"{call} differs from worker to worker, in {what}: {value} in "
                    f"{names[0]}, {other} "
                    f"in {name}. Expected the same program in every worker, with the same data, of "
                    "which each takes its share. Data that each worker has of its own "
                    "(AutoShardPolicy.OFF) needs steps_per_epoch."
                )
