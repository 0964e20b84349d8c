"""All changes to Keras and TensorFlow for this package's strategies.

`_patch_models` lists each change, its reason, and which change in Keras or
TensorFlow would make it unnecessary ("Until …"). `private_names` knows where the names are.
"""

from __future__ import annotations

import contextlib
import functools
import types
from typing import Any

import tensorflow as tf
import wrapt

from slurm_resolver.errors import KerasError
from slurm_resolver.start.keras_version import keras_problem
from slurm_resolver.tf import private_names
from slurm_resolver.tf.keras.calls import call_together
from slurm_resolver.tf.keras.custom_functions import KIND, make_function
from slurm_resolver.tf.keras.files.one_writer import remove_together
from slurm_resolver.tf.keras.files.saving import attributes_to_skip, save_once
from slurm_resolver.tf.keras.iterators import make_iterator
from slurm_resolver.tf.keras.metrics import add_on_servers, patch_metrics
from slurm_resolver.tf.keras.one_process import is_one_process, moments_of_own_rows
from slurm_resolver.tf.keras.protocols import EpochIterator, Metric, Model
from slurm_resolver.tf.keras.replicas import is_in_replica
from slurm_resolver.tf.keras.sharing import without_optionals
from slurm_resolver.tf.keras.strategy_registry import is_ours, ours, sharing_of
from slurm_resolver.tf.private_names import Method


def prepare(strategy: tf.distribute.Strategy) -> None:
    """Lets Keras 3's models train, evaluate and predict under a strategy of this package."""
    ours.add(strategy)
    wrapt.when_imported("keras")(_patch)


@functools.cache  # once
def _patch(keras: types.ModuleType) -> None:
    if keras.__version__.startswith("2."):
        return
    of_tensorflow = keras.backend.backend() == "tensorflow"
    # All workers do the same, and fail together. Always necessary.
    for name in KIND:
        replacement = call_together if of_tensorflow else _refuse_backend
        private_names.replace(keras.Model, name, replacement)
    # Without these changes, only one worker trains, as Keras does. In several, calls are errors.
    if of_tensorflow and not keras_problem(keras.__version__) and not private_names.fit_problem():
        _patch_models()


def _refuse_backend(*args: object, **kwargs: object) -> None:
    import keras

    backend = keras.backend.backend()
    env = {"jax": "keras-distribution"}.get(backend, backend)
    raise KerasError(
        f"Keras computes with {backend} (KERAS_BACKEND, or keras.json), and a strategy of "
        "TensorFlow's cannot train its models: expected KERAS_BACKEND=tensorflow. To train with "
        f"{backend} on several nodes, leave the strategy out, and start with srun slurm-resolver "
        f"exec --env {env} -- python …"
    )


def _patch_models() -> None:
    """Changes what models do around steps, under any strategy of this package."""

    changes: dict[private_names.Name, Method] = {
        # A strategy makes the functions that run steps. Until Keras' steps know their rows.
        private_names.MAKE_TRAIN_FUNCTION: make_function,
        private_names.MAKE_TEST_FUNCTION: make_function,
        private_names.MAKE_PREDICT_FUNCTION: make_function,
        # It also splits the data by rows. Until TensorFlow does.
        private_names.READ_DATA: _read_data,
        # No worker waits for the end of another one's iterator. Until TensorFlow does not wait.
        private_names.MAKE_ITERATOR: make_iterator,
        # Models without `call()` train, and no batch is lost. Until Keras does not draw one to
        # build.
        private_names.BUILD_FOR_DATA: _build_without_data,
        # A coordinator's workers lose no count, and all steps count in results. Always necessary.
        private_names.METRICS_RESULT: _metrics_when_steps_are_done,
        private_names.ASSIGN_ADD: add_on_servers,
        # A metric's variables are the same in all workers. Until Keras adds metrics up.
        private_names.ADD_VARIABLE: _add_variable,
        # A replica normalizes by the statistics of its own rows. Until Keras synchronizes them.
        private_names.MOMENTS: moments_of_own_rows,
        # One worker writes. The program may have imported `save_model`, which calls these
        # functions. Always necessary.
        private_names.EXPORT: save_once,
        private_names.SAVE_MODEL: save_once,
        private_names.SAVE_WEIGHTS: save_once,
        private_names.SAVE_H5: save_once,
        private_names.REMOVE_BACKUP: remove_together,
        # One worker can save in the scope. Until Keras makes no variables to save.
        private_names.SKIPPED_ATTRIBUTES: attributes_to_skip,
    }
    for name, replacement in changes.items():
        name.replace(replacement)
    # `float(learning_rate)` works. Until TensorFlow converts distributed variables.
    variable = private_names.DISTRIBUTED_VARIABLE.get()
    variable.__float__ = lambda self: float(self.numpy())
    variable.__int__ = lambda self: int(self.numpy())


def _add_variable(original: Method, metric: Metric, *args: object, **kwargs: object) -> object:
    """Makes a metric's variable, the same in all workers, so that one alone can read it."""
    patch_metrics()  # its class may be one of the program
    if is_one_process() or sharing_of(tf.distribute.get_strategy()):
        kwargs["aggregation"] = "only_first_replica"
    return original(metric, *args, **kwargs)


def _read_data(
    original: Method, iterator: EpochIterator, distribute_strategy: Any = None, **kwargs: object
) -> None:
    if not is_ours(distribute_strategy):
        original(iterator, distribute_strategy, **kwargs)
        return
    read = functools.partial(distribute_strategy.read_dataset, iterator)
    reader = types.SimpleNamespace(experimental_distribute_dataset=read)
    original(iterator, reader, **kwargs)
    # The iterator keeps the reader. A cycle would keep the iterator until Python ends, when
    # TensorFlow waits without end for a generator that cannot run any more.
    vars(reader).clear()


def _build_without_data(original: Method, model: Model, **kwargs: object) -> None:
    """Builds a coordinator's model from the shapes of its data; others are built by a step.

    Keras would draw a batch, after which the epoch hooks of a PyDataset run once more.
    """
    strategy = model.distribute_strategy
    if not is_ours(strategy):
        original(model, **kwargs)
    elif "iterator" in kwargs and not sharing_of(strategy):
        spec = private_names.DISTRIBUTED_DATASET.of(kwargs["iterator"]).element_spec
        with contextlib.suppress(Exception):  # such as of a model without `call()`
            original(model, data_batch=without_optionals(spec))


def _metrics_when_steps_are_done(original: Method, model: Any) -> object:
    """Waits for the steps that a coordinator has scheduled."""
    if not is_in_replica():
        for function in (model.train_function, model.test_function):
            if hasattr(function, "join"):  # a coordinator's, or what BackupAndResume puts there
                function.join()
    return original(model)
