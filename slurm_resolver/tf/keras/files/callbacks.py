"""Lets one worker write the files of callbacks that write files themselves.

ModelCheckpoint does not: it saves with the model's own methods (see `saving`).
"""

from __future__ import annotations

import contextlib
import os
import tempfile
from collections.abc import Iterator, Sequence
from typing import Any

import tensorflow as tf

from slurm_resolver.tf.private_names import Method

_BACKUP = "BackupAndRestore"
# The callbacks, and the attribute with the path.
_PATHS = {
    "CSVLogger": "filename",
    "TensorBoard": "log_dir",
    _BACKUP: "backup_dir",
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
            attribute = _PATHS[kind]
            value: Any
            if kind == _BACKUP:
                attribute = "on_train_end"
                value = _removed_together(callback, workers)
            elif any([kind, path] in told for told in paths[: workers.index]):
                scratch = undo.enter_context(tempfile.TemporaryDirectory())
                value = os.path.join(scratch, os.path.basename(path))
            else:
                continue
            undo.callback(setattr, callback, attribute, getattr(callback, attribute))
            setattr(callback, attribute, value)
        yield


def _removed_together(callback: Any, workers: Any) -> Method:
    """Returns the `on_train_end` of a BackupAndRestore, which removes what all workers have saved.

    Each worker saves it, with `saving`, and reads it.
    """
    remove_files = callback.on_train_end

    def on_train_end(logs: Any = None) -> None:
        workers.exchange("ends fit", None)  # once all have written
        with contextlib.suppress(FileNotFoundError):  # other workers remove them as well
            remove_files(logs)

    return on_train_end


def make_folder(original: Any, path: Any) -> Any:
    """Makes a folder for a callback, unless another worker was faster."""
    with contextlib.suppress(FileExistsError):
        return original(path)
