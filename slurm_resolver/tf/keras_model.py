"""What Keras 3's models do by themselves in each worker, and the workers have to do as one.

`prepare` wraps public methods of `keras.Model`: `save`, `save_weights` and `export`, so that one
worker writes, `fit`, so that all workers train the same model in the same way, and
`make_train_function` and `make_test_function`, whose functions do the same in less time.
Without a `MultiWorkerMirroredStrategy` of this package for several workers they do what they did.
"""

from __future__ import annotations

import functools
import os
import sys
import weakref
import zlib
from typing import Any, Callable, Dict

from slurm_resolver.import_hook import when_imported
from slurm_resolver.slurm.step import SlurmStep
from slurm_resolver.tf.fit_agreement import fit_together
from slurm_resolver.tf.mirrored_steps import StepFunction
from slurm_resolver.tf.one_writer import write_once

Method = Callable[..., Any]

# The strategies of several workers that have been made in this process.
_strategies: weakref.WeakSet[Any] = weakref.WeakSet()


def prepare(strategy: Any) -> None:
    """Lets the models of this strategy, of several workers, save and fit as one."""
    _strategies.add(strategy)
    when_imported("keras", _wrap)


@functools.cache  # once
def _wrap(keras: Any) -> None:
    model = keras.Model
    if keras.__version__.startswith("2."):
        return
    model.save = _saving(model.save, "save")
    model.save_weights = _saving(model.save_weights, "save_weights")
    model.export = _saving(model.export, "export")
    model.fit = _fitting(model.fit)
    model.make_train_function = _making(model.make_train_function, "train")
    model.make_test_function = _making(model.make_test_function, "test")
    # The function by which Keras 2's programs save.
    save_model: Any = keras.saving.save_model
    for name in ("keras.saving", "keras.models", "keras._tf_keras.keras.saving"):
        module: Any = sys.modules.get(name)
        if module is not None and module.save_model is save_model:
            module.save_model = _saving(save_model, "save")


def _fitting(fit: Method) -> Method:
    @functools.wraps(fit)
    def wrapped(model: Any, *args: Any, **kwargs: Any) -> Any:
        return fit_together(functools.partial(fit, model), model, list(_strategies), args, kwargs)

    return wrapped


def _making(make: Method, kind: str) -> Method:
    name = f"{kind}_function"

    @functools.wraps(make)
    def wrapped(model: Any, force: bool = False) -> Any:
        if model.distribute_strategy not in _strategies:
            return make(model, force)
        if force or getattr(model, name) is None:
            make(model, force)
            own = StepFunction(model, getattr(model, f"{kind}_step"), getattr(model, name))
            setattr(model, name, own)
        return getattr(model, name)

    return wrapped


def _saving(save: Method, kind: str) -> Method:
    """Wraps a method that writes files, so that one of the workers writes them.

    All workers hold the same model, and may call it all, or one of them alone.
    """

    @functools.wraps(save)
    def wrapped(model: Any, filepath: Any, *args: Any, **kwargs: Any) -> Any:
        if not _strategies or not _is_ours(filepath, kwargs):
            return save(model, filepath, *args, **kwargs)
        path = os.fspath(filepath)
        identity = f"{_run()} {kind} {args} {sorted(kwargs.items())} {_digest(model)}"
        write_once(path, identity, lambda path: save(model, path, *args, **kwargs))
        return None

    return wrapped


def _is_ours(filepath: Any, kwargs: Dict[str, Any]) -> bool:
    """Whether a path is one in a folder of this file system, and to be replaced without asking."""
    if not isinstance(filepath, (str, os.PathLike)) or "://" in str(filepath):
        return False
    if os.path.exists(filepath):
        return kwargs.get("overwrite", True) and (
            os.path.isfile(filepath) or os.path.isdir(filepath)
        )
    return os.path.isdir(os.path.dirname(os.path.realpath(filepath)))


def _run() -> str:
    """Stands for this run: what an earlier one has left half saved is not waited for."""
    step = SlurmStep.read()
    return f"{step.job_id}.{step.step_id}.{step.restart_count}"


def _digest(model: Any) -> str:
    """Stands for the state of a model and its optimizer."""
    digest = 0
    for variable in [*model.weights, *getattr(model.optimizer, "variables", ())]:
        digest = zlib.crc32(memoryview(variable.numpy()).cast("B"), digest)
    return f"{digest:08x}"
