"""Lets Keras 3's models train, evaluate and predict on a coordinator's workers.

`prepare` wraps public methods of `keras.Model`, and `keras.Variable.assign_add`. Models of other
strategies do what they did.
"""

from __future__ import annotations

import functools
import weakref
from typing import Any, Callable, Dict

import tensorflow as tf

from slurm_resolver.errors import FitError, KerasError
from slurm_resolver.import_hook import when_imported
from slurm_resolver.preflight import keras_version
from slurm_resolver.tf import atomic_updates
from slurm_resolver.tf.coordinated_predictions import PredictFunction
from slurm_resolver.tf.coordinated_steps import StepFunction
from slurm_resolver.tf.keras_calls import is_of_no_scope

# Those of this package that have been made in this process.
_strategies: weakref.WeakSet[Any] = weakref.WeakSet()


def prepare(strategy: Any) -> None:
    """Lets the models of this strategy run on its workers."""
    _strategies.add(strategy)
    when_imported("keras", _wrap)


@functools.cache  # once
def _wrap(keras: Any) -> None:
    if keras.__version__.startswith("2."):
        return
    kinds: Dict[str, Callable[[Any], Any]] = {
        "train": lambda model: StepFunction(model, model.train_step, trains=True),
        "test": lambda model: StepFunction(model, model.test_step, trains=False),
        "predict": PredictFunction,
    }
    for kind, make in kinds.items():
        _replace_maker(keras.Model, kind, make)
    _wait_for_steps_before_metrics(keras.Model)
    atomic_updates.let_additions_be_atomic(keras.Variable, _strategies)


def _replace_maker(model_type: Any, kind: str, make: Callable[[Any], Any]) -> None:
    name, made = f"make_{kind}_function", f"{kind}_function"
    original = getattr(model_type, name)

    @functools.wraps(original)
    def make_function(self: Any, force: bool = False) -> Any:
        if self.distribute_strategy not in _strategies:
            if kind == "train":
                _check_scope(self)
            return original(self, force)
        if force or getattr(self, made) is None:
            check_model(self)
            setattr(self, made, make(self))
        return getattr(self, made)

    setattr(model_type, name, make_function)


def _wait_for_steps_before_metrics(model_type: Any) -> None:
    original = model_type.get_metrics_result

    @functools.wraps(original)
    def get_metrics_result(self: Any) -> Any:
        in_a_step = tf.distribute.has_strategy() and not tf.distribute.in_cross_replica_context()
        if self.distribute_strategy in _strategies and not in_a_step:
            for function in (self.train_function, self.test_function):
                if hasattr(function, "join"):  # a StepFunction, or what BackupAndResume puts there
                    function.join()
        return original(self)

    model_type.get_metrics_result = get_metrics_result


def _check_scope(model: Any) -> None:
    """Raises FitError for a model that the chief would train alone, most likely by mistake."""
    if _strategies and is_of_no_scope(model):
        raise FitError(
            f"fit of {model.name!r}, a model that was built outside strategy.scope(): the chief "
            "would train it alone. Build and compile the model in `with strategy.scope():`. To "
            "train one on the chief on purpose, build it in the scope of a "
            'tf.distribute.OneDeviceStrategy("/cpu:0").'
        )


def check_model(model: Any) -> None:
    """Raises KerasError for a model that cannot be trained in this way."""
    keras_version.check_keras()
    if model.run_eagerly:
        raise KerasError(
            "run_eagerly=True under ParameterServerStrategy: only compiled functions can be sent "
            "to workers. Leave it out; to look into a step, train in one process."
        )
    for variable in model.variables:
        if not hasattr(variable.value, "handle"):
            raise KerasError(
                f"the variable {variable.path} is partitioned, which Keras 3 cannot train. Leave "
                "out variable_partitioner, or use tf_keras or a loop of your own."
            )
