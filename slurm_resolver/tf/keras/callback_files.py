"""The files that Keras' callbacks write during a `fit` of several workers.

Of the workers whose callbacks have the same path the first one writes there. The others' callbacks
do the same in a folder that nobody sees, so that what else they do, they do in every worker.
`ModelCheckpoint` needs none of this, as it saves with the model's own methods.
"""

from __future__ import annotations

import contextlib
import os
import sys
import tempfile
from typing import Any, Iterator, List, Sequence, Tuple

from slurm_resolver.tf.exchange import Workers

# The attribute that has the path; a later fit finds its value as it was.
_PATHS = {"CSVLogger": "filename", "TensorBoard": "log_dir", "BackupAndRestore": "backup_dir"}


def written_paths(given: Any) -> List[List[str]]:
    """Returns the kind and path of each callback of `fit` that writes files by itself."""
    return [[kind, path] for kind, path, _ in _writing(given)]


def _writing(given: Any) -> Iterator[Tuple[str, str, Any]]:
    known = sys.modules["keras"].callbacks
    listed = getattr(given, "callbacks", given)  # a list, one, None, or a CallbackList
    for callback in listed if isinstance(listed, list) else [listed]:
        for kind, attribute in _PATHS.items():
            if isinstance(callback, getattr(known, kind)):
                yield kind, os.path.abspath(getattr(callback, attribute)), callback


@contextlib.contextmanager
def one_writer(given: Any, workers: Workers, paths: Sequence[List[List[str]]]) -> Iterator[None]:
    """Lets the callbacks write in one worker each.

    `paths` has what `written_paths` has returned, by worker.
    """
    earlier = [path for told in paths[: workers.index] for path in told]
    with contextlib.ExitStack() as undo:
        for kind, path, callback in list(_writing(given)):
            key = [kind, path]
            if kind == "BackupAndRestore" and all(key in told for told in paths):
                os.makedirs(path, exist_ok=True)
                undo.enter_context(_ending_together(callback, workers))
            if key not in earlier:
                continue
            if kind == "BackupAndRestore":  # all read it; the first removes it
                changed: Tuple[str, Any] = ("delete_checkpoint", False)
            else:
                scratch = undo.enter_context(tempfile.TemporaryDirectory())
                changed = (_PATHS[kind], os.path.join(scratch, os.path.basename(path)))
            undo.callback(setattr, callback, changed[0], getattr(callback, changed[0]))
            setattr(callback, *changed)
        yield


@contextlib.contextmanager
def _ending_together(callback: Any, workers: Workers) -> Iterator[None]:
    """Lets the callback remove its files only when it has written them in all workers."""
    before = callback.on_train_end

    def on_train_end(logs: Any = None) -> None:
        workers.exchange("ends fit", None)
        before(logs)

    callback.on_train_end = on_train_end
    try:
        yield
    finally:
        del callback.on_train_end


def make_folder(original: Any, path: Any) -> Any:
    """Makes a folder for a callback, unless another worker was faster."""
    try:
        return original(path)
    except FileExistsError:
        return None
