"""Lets one worker write the files of callbacks that write files themselves.

ModelCheckpoint does not: it saves with the model's own methods (see `saving`).
"""

from __future__ import annotations

import contextlib
import itertools
import os
import tempfile
from collections.abc import Iterator, Sequence
from typing import Any

import tensorflow as tf

from slurm_resolver.tf.exchange import Workers
from slurm_resolver.tf.private_names import Method

# The callbacks, and the attribute with the path.
_PATHS = {
    "CSVLogger": "filename",
    "TensorBoard": "log_dir",
}


def listed(callbacks: Any) -> list[Any]:
    """Returns the callbacks given to `fit`: several, one, None, or a CallbackList of Keras."""
    given = getattr(callbacks, "callbacks", callbacks)
    return [callback for callback in tf.nest.flatten(given) if callback is not None]


@contextlib.contextmanager
def one_writer(callbacks: Sequence[Any], workers: Workers) -> Iterator[None]:
    """Lets one worker write each path in the block.

    The other workers' callbacks write to a temporary folder, so that a callback otherwise does the
    same in every worker.
    """
    import keras

    own = [
        (callback, attribute, os.path.abspath(getattr(callback, attribute)))
        for kind, attribute in _PATHS.items()
        for callback in callbacks
        if isinstance(callback, getattr(keras.callbacks, kind))
    ]
    told = workers.exchange("begins to write files", [path for _, _, path in own])
    earlier = set(itertools.chain(*told[: workers.index]))
    with contextlib.ExitStack() as undo:
        for callback, attribute, path in own:
            if path in earlier:
                scratch = undo.enter_context(tempfile.TemporaryDirectory())
                undo.callback(setattr, callback, attribute, getattr(callback, attribute))
                setattr(callback, attribute, os.path.join(scratch, os.path.basename(path)))
        yield


def remove_together(original: Method, callback: Any, logs: Any = None) -> None:
    """Removes what a BackupAndRestore has saved, once all workers have saved it (see `saving`)."""
    workers = getattr(callback.model.distribute_strategy, "workers", None)
    if workers:
        workers.exchange("ends fit", None)
    with contextlib.suppress(FileNotFoundError):  # other workers remove it as well
        original(callback, logs)


def make_folder(original: Method, path: Any) -> Any:
    """Makes a folder for a callback, unless another worker was faster."""
    with contextlib.suppress(FileExistsError):
        return original(path)
