"""Lets all workers make the same calls of Keras 3's `fit`, `evaluate` and `predict`, or none.

Workers train as one process only if all of them make the same calls in the same order. What is
compared, when, and where:

    the method, and the callbacks' kinds   before a call                 `Workers.exchange`
    the arguments and the model            before a call                 `configuration`
    the weights                            the same, and each epoch      `weight_comparison`
    the batch and the learning rate        in each step                  `step_comparison`

A difference is a FitError in every worker, which says which worker has what. If the call fails in
one worker, it ends in all of them, with that worker's error.
"""

from __future__ import annotations

import functools
import inspect
import itertools
from collections.abc import Mapping

import tensorflow as tf

from slurm_resolver.coordination.progress import IDLE, Report
from slurm_resolver.errors import FitError
from slurm_resolver.log import warn_once
from slurm_resolver.start.keras_version import check_keras
from slurm_resolver.tf import private_names
from slurm_resolver.tf.keras.configuration import describe_call, describe_model
from slurm_resolver.tf.keras.custom_functions import check_functions
from slurm_resolver.tf.keras.differences import REMEDY
from slurm_resolver.tf.keras.files.callback_files import writing_together
from slurm_resolver.tf.keras.files.one_writer import listed, one_writer
from slurm_resolver.tf.keras.progress_callback import reporting
from slurm_resolver.tf.keras.protocols import Model
from slurm_resolver.tf.keras.strategy_registry import are_several, is_ours
from slurm_resolver.tf.keras.waits import has_clock
from slurm_resolver.tf.keras.weight_comparison import callback_of, compare_weights
from slurm_resolver.tf.private_names import Method
from slurm_resolver.tf.reporter import reporter

_EXIT_SECONDS = 2.0  # for which the workers wait for each other's reports before they exit
SCOPE = (
    "Build and compile the model in `with strategy.scope():`, and create its optimizer there too."
)


def call_together(original: Method, model: Model, /, *args: object, **kwargs: object) -> object:
    """Calls a model's `fit`, `evaluate` or `predict`, which all workers must call alike.

    It calls `train_on_batch`, `test_on_batch` or `predict_on_batch` as well; their steps compare
    the workers.

    Raises:
        FitError: in every worker, if the calls differ, or if one worker fails; or if each of them
            would compute a batch alone.
        KerasError: for a version of Keras that would train incorrectly.
    """
    name = original.__name__
    call = functools.partial(original, model, *args, **kwargs)
    strategy = model.distribute_strategy
    workers = getattr(strategy, "workers", None)  # None where the strategy coordinates them
    if not _is_in_scope(name, model) or not workers or "on_batch" in name:
        return call()
    if workers.call or not strategy.of_several:
        workers.exchange(f"calls {name} within {workers.call}", None)
        with writing_together(), reporter.aside(name):
            return call()
    if name == "fit" and model.compiled and model.jit_compile:
        warn_once("jit_compile=True has no effect: XLA cannot compile steps of several workers")
    bound = inspect.signature(original).bind(model, *args, **kwargs)
    bound.apply_defaults()
    arguments = bound.arguments
    callbacks = listed(arguments["callbacks"])
    arguments["callbacks"] = callbacks
    kinds = sorted({type(callback).__name__ for callback in callbacks})
    with reporting(name) as report:
        kinds_of_all = workers.exchange(f"calls {name}", ", ".join(kinds) or "none")
        remedy = f"{REMEDY} Callbacks: {workers.holders(kinds_of_all)}."
        compare_weights(
            model,
            f"at the start of {name}",
            remedy,
            described=[*describe_call(name, arguments), *describe_model(model)],
        )
        reporter.enter(IDLE, "")
        reporter.begin_training(is_measured=has_clock())
        if arguments["verbose"] == "auto" and workers.index:  # one bar is enough
            arguments["verbose"] = 0
        arguments["callbacks"] = [report, *callbacks, callback_of(workers, remedy)]
        call = functools.partial(original, *bound.args, **bound.kwargs)
        with workers.failing_together(name), one_writer(callbacks, workers):
            return _fit(call, strategy) if name == "fit" else call()


def _fit(call: Method, strategy: tf.distribute.Strategy) -> object:
    """Calls `fit`, at whose end the first worker says where its time went."""
    workers = strategy.workers

    def tell(reports: Mapping[str, Report]) -> None:
        if workers.index == 0:
            reporter.tell_usage(strategy.cluster_resolver, "fit", reports)

    try:
        result = call()
    except SystemExit:  # in all workers, if the training has been saved
        tell(reporter.of_all_workers(_EXIT_SECONDS))
        raise
    reports = itertools.starmap(Report, workers.exchange("ends fit", reporter.report()))
    tell(dict(zip(workers.full_names, reports)))
    return result


def _is_in_scope(name: str, model: Model) -> bool:
    """Returns whether a model is in the scope of a strategy of this package.

    Raises:
        FitError: if a method would train a model that is in the scope of no strategy.
        KerasError: for a version of Keras that would train incorrectly on several replicas.
    """
    strategy = model.distribute_strategy
    if is_ours(strategy):
        if strategy.of_several or strategy.num_replicas_in_sync > 1:
            check_keras()
            private_names.check_fit()
        check_functions(name, model)
        return True
    if (
        name in ("fit", "train_on_batch")
        and are_several()
        and not tf.distribute.has_strategy()
        and strategy is tf.distribute.get_strategy()
    ):
        raise FitError(
            f"{name} of {model.name!r}, a model that was built outside strategy.scope(): this "
            f"process would train it alone, on all of the data. {SCOPE} To train one alone on "
            'purpose, build it in the scope of tf.distribute.OneDeviceStrategy("/gpu:0") or '
            '("/cpu:0").'
        )
    return False
