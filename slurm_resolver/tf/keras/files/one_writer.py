"""Lets one worker write the files of callbacks that write files themselves.

ModelCheckpoint does not: it saves with the model's own methods (see `saving`). Under TF_CONFIG, the
workers have no coordination service, and only the callbacks of `_WRITERS` write once.
"""

from __future__ import annotations

import contextlib
import functools
import itertools
import os
import tempfile
from collections.abc import Iterator, Sequence
from typing import Any

import tensorflow as tf

from slurm_resolver.tf.exchange import Workers
from slurm_resolver.tf.keras.files.callback_files import CallbackFiles, setting
from slurm_resolver.tf.keras.protocols import Logs
from slurm_resolver.tf.private_names import Method

_files_of = functools.cache(CallbackFiles)  # of this process's workers

# What writes without Python's functions, or writes once under TF_CONFIG as well: the attribute
# with the path. Orbax reads it only at the start: its checkpointer is silent in other workers.
_WRITERS = {
    "CSVLogger": "filename",
    "TensorBoard": "log_dir",
    "OrbaxCheckpoint": "directory",
}


class _Silent:
    """Takes the place of what writes, in a worker that does not."""

    def __getattr__(self, name: str) -> _Silent:
        return self

    def __call__(self, *args: object, **kwargs: object) -> _Silent:
        return self


def listed(callbacks: object) -> list[object]:
    """Returns the callbacks given to `fit`: several, one, None, or a CallbackList of Keras."""
    callbacks = getattr(callbacks, "callbacks", callbacks)
    return [callback for callback in tf.nest.flatten(callbacks) if callback is not None]


@contextlib.contextmanager
def one_writer(callbacks: Sequence[object], workers: Workers) -> Iterator[None]:
    """Lets one worker write each path in the block (see `callback_files`).

    The other workers' callbacks write to a temporary folder, so that a callback otherwise does the
    same in every worker.
    """
    import keras

    shared = []
    writers = []
    for callback in callbacks:
        if isinstance(callback, keras.callbacks.BackupAndRestore):  # its workers save together
            # Several workers would make it at once, which is an error in all but one.
            tf.io.gfile.makedirs(callback.backup_dir)
        elif not getattr(callback, "restores_all_workers", False):
            shared.append(callback)
        writers += [
            (callback, attribute)
            for kind, attribute in _WRITERS.items()
            if isinstance(callback, getattr(keras.callbacks, kind, ()))
            and not (workers.client and kind == "CSVLogger")
        ]
    own = [os.path.abspath(getattr(callback, attribute)) for callback, attribute in writers]
    paths = workers.exchange("begins to write files", own)
    earlier = set(itertools.chain(*paths[: workers.index]))
    with contextlib.ExitStack() as undo:
        for (callback, attribute), path in zip(writers, own):
            if path in earlier:
                scratch = undo.enter_context(tempfile.TemporaryDirectory())
                place = os.path.join(scratch, os.path.basename(path))
                undo.enter_context(setting(callback, attribute, place))
                if hasattr(callback, "checkpointer"):
                    undo.enter_context(setting(callback, "checkpointer", _Silent()))
        if workers.client and len(workers.names) > 1:
            undo.enter_context(_files_of(workers).sharing(shared))
        yield


def remove_together(original: Method, callback: Any, logs: Logs = None) -> None:
    """Removes what a BackupAndRestore has saved, once all workers have saved it (see `saving`)."""
    workers = getattr(callback.model.distribute_strategy, "workers", None)
    if workers:
        workers.exchange("ends fit", None)
    with contextlib.suppress(FileNotFoundError):  # other workers remove it as well
        original(callback, logs)
