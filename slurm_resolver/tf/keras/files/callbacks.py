"""Lets one worker write the files of callbacks that write files themselves.

ModelCheckpoint does not: it saves with the model's own methods (see `saving`).
"""

from __future__ import annotations

import contextlib
import os
import tempfile
import uuid
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import tensorflow as tf

from slurm_resolver.errors import FitError
from slurm_resolver.tf import private_names

# The callbacks, and the attribute with the path.
_PATHS = {
    "CSVLogger": "filename",
    "TensorBoard": "log_dir",
    "BackupAndRestore": "backup_dir",
}


def listed(callbacks: Any) -> list[Any]:
    """Returns the callbacks given to `fit`: several, one, None, or a CallbackList of Keras."""
    given = getattr(callbacks, "callbacks", callbacks)
    return [callback for callback in tf.nest.flatten(given) if callback is not None]


def writing(callbacks: Sequence[Any]) -> Iterator[tuple[str, str, Any]]:
    """Yields the kind and path of each callback of `fit` that writes files itself, and it."""
    import keras

    for callback in callbacks:
        for kind, attribute in _PATHS.items():
            if isinstance(callback, getattr(keras.callbacks, kind)):
                yield kind, os.path.abspath(getattr(callback, attribute)), callback


@contextlib.contextmanager
def one_writer(
    callbacks: Sequence[Any], workers: Any, paths: Sequence[list[list[str]]]
) -> Iterator[None]:
    """Lets one worker write each path in the block; `paths` are the kinds and paths of each worker.

    The other workers' callbacks write to a temporary folder, so that a callback otherwise does the
    same in every worker.
    """
    with contextlib.ExitStack() as undo:
        for kind, path, callback in writing(callbacks):
            if kind == "BackupAndRestore":
                changed = undo.enter_context(one_backup(callback, path, workers))
            elif any([kind, path] in told for told in paths[: workers.index]):
                scratch = undo.enter_context(tempfile.TemporaryDirectory())
                changed = {_PATHS[kind]: os.path.join(scratch, os.path.basename(path))}
            else:
                continue
            for attribute, value in changed.items():
                undo.callback(setattr, callback, attribute, getattr(callback, attribute))
                setattr(callback, attribute, value)
        yield


@contextlib.contextmanager
def one_backup(callback: Any, path: str, workers: Any) -> Iterator[dict[str, Any]]:
    """Yields what to change in a BackupAndRestore: all workers read its folder, and one writes it.

    If the folder is on a disk of each node's own, one worker on each node writes.

    Raises:
        FitError: in every worker, if they would resume from different epochs.
    """
    found = None
    with contextlib.suppress(FileNotFoundError):
        found = Path(path, "training_metadata.json").read_text()
    told = workers.exchange("starts fit with BackupAndRestore", [found, uuid.uuid4().hex])
    backups, tokens = zip(*told)
    for name, backup in zip(workers.names, backups):
        if backup != backups[0]:
            raise FitError(
                f"BackupAndRestore({callback.backup_dir!r}): this folder contains "
                f"{backups[0] or 'no backup'} in {workers.names[0]}, and {backup or 'no backup'} "
                f"in {name}. Expected the same backup in all workers: use a folder on a file "
                "system that all nodes share, or remove it on every node to train from the start."
            )
    remove_files = callback.on_train_end

    def on_train_end(logs: Any = None) -> None:
        workers.exchange("ends fit", None)  # once all have written them
        remove_files(logs)

    changed: dict[str, Any] = {"on_train_end": on_train_end}
    # The file system decides, as no worker knows which others see its folder.
    claim = os.path.join(path, f".written-by-one-{tokens[0]}")
    try:
        os.makedirs(claim)
    except FileExistsError:
        changed |= {private_names.SAVE_BACKUP.name: lambda: None, "delete_checkpoint": False}
    try:
        yield changed
    finally:
        with contextlib.suppress(FileNotFoundError):  # the first that ends removes it
            os.rmdir(claim)


def make_folder(original: Any, path: Any) -> Any:
    """Makes a folder for a callback, unless another worker was faster."""
    with contextlib.suppress(FileExistsError):
        return original(path)
