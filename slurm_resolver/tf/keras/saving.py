"""Keras 3's `save`, `save_weights` and `export`, of which one worker writes the files."""

from __future__ import annotations

import os
import zlib
from typing import Any, Callable, Dict

from slurm_resolver.slurm.step import SlurmStep
from slurm_resolver.tf.keras.calls import are_several
from slurm_resolver.tf.keras.one_writer import write_once
from slurm_resolver.tf.reporter import reporter


def save_once(
    kind: str, save: Callable[..., Any], model: Any, filepath: Any, *args: Any, **kwargs: Any
) -> Any:
    """Saves a model in one of the workers.

    All workers hold the same model, and may call it all, or one of them alone.
    """
    if not are_several() or not _is_ours(filepath, kwargs):
        return save(model, filepath, *args, **kwargs)
    path = os.fspath(filepath)
    identity = f"{_run()} {kind} {args} {sorted(kwargs.items())} {_digest(model)}"
    with reporter.saving():
        write_once(path, identity, lambda path: save(model, path, *args, **kwargs))
    return None


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
