"""Lets one worker write the files of callbacks that write files themselves.

ModelCheckpoint does not: it saves with the model's own methods (see `saving`).
"""

from __future__ import annotations

import contextlib
import functools
import os
import sys
import tempfile
from typing import Any, Callable, Dict, Iterator, List, Sequence, Tuple

import tensorflow as tf

# The callbacks, and the attribute with the path.
_PATHS = {"CSVLogger": "filename", "TensorBoard": "log_dir", "BackupAndRestore": "backup_dir"}


def listed(callbacks: Any) -> List[Any]:
    """Returns the callbacks given to `fit`: several, one, None, or a CallbackList of Keras."""
    given = getattr(callbacks, "callbacks", callbacks)
    return [callback for callback in tf.nest.flatten(given) if callback is not None]


def writing(callbacks: Any) -> Iterator[Tuple[str, str, Any]]:
    """Yields the kind and path of each callback of `fit` that writes files itself, and it."""
    known = sys.modules["keras"].callbacks
    for callback in listed(callbacks):
        for kind, attribute in _PATHS.items():
            if isinstance(callback, getattr(known, kind)):
                yield kind, os.path.abspath(getattr(callback, attribute)), callback


@contextlib.contextmanager
def one_writer(callbacks: Any, workers: Any, paths: Sequence[List[List[str]]]) -> Iterator[None]:
    """Lets one worker write each path in the block; `paths` are the kinds and paths of each worker.

    The other workers' callbacks write to a temporary folder, so that a callback otherwise does the
    same in every worker.
    """
    earlier = [path for told in paths[: workers.index] for path in told]
    with contextlib.ExitStack() as undo:
        for kind, path, callback in list(writing(callbacks)):
            key = [kind, path]
            changed: Dict[str, Any] = {}
            if kind == "BackupAndRestore" and all(key in told for told in paths):
                os.makedirs(path, exist_ok=True)
                changed["on_train_end"] = functools.partial(_end, callback.on_train_end, workers)
            if key in earlier and kind == "BackupAndRestore":  # all read it; the first removes it
                changed["delete_checkpoint"] = False
            elif key in earlier:
                scratch = undo.enter_context(tempfile.TemporaryDirectory())
                changed[_PATHS[kind]] = os.path.join(scratch, os.path.basename(path))
            for attribute, value in changed.items():
                undo.callback(setattr, callback, attribute, getattr(callback, attribute))
                setattr(callback, attribute, value)
        yield


def _end(on_train_end: Callable[[Any], None], workers: Any, logs: Any = None) -> None:
    """Lets a callback remove its files once all workers have written them."""
    workers.exchange("ends fit", None)
    on_train_end(logs)


def make_folder(original: Any, path: Any) -> Any:
    """Makes a folder for a callback, unless another worker was faster."""
    with contextlib.suppress(FileExistsError):
        return original(path)
