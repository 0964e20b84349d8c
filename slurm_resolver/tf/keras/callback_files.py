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


class Callbacks:
    """What `fit` has been given as its callbacks: a list, one callback, None, or a CallbackList."""

    def __init__(self, given: Any) -> None:
        listed = getattr(given, "callbacks", given)
        self._listed: List[Any] = listed if isinstance(listed, list) else [listed]

    def paths(self) -> List[List[str]]:
        """Returns the kind and the path of each callback that writes files by itself."""
        return [[kind, os.path.abspath(path)] for kind, path, _ in self._writing()]

    def _writing(self) -> Iterator[Tuple[str, str, Any]]:
        known = sys.modules["keras"].callbacks
        for callback in self._listed:
            for kind, attribute in _PATHS.items():
                if isinstance(callback, getattr(known, kind)):
                    yield kind, str(getattr(callback, attribute)), callback

    @contextlib.contextmanager
    def one_writer(self, workers: Workers, paths: Sequence[List[List[str]]]) -> Iterator[None]:
        """Lets the callbacks write in one worker each.

        Args:
            workers: those who fit together.
            paths: by worker, what `paths` has returned there.
        """
        earlier = [path for told in paths[: workers.index] for path in told]
        everywhere = [path for path in paths[0] if all(path in told for told in paths)]
        with contextlib.ExitStack() as undo:
            for callback in self._listed:
                if isinstance(callback, sys.modules["keras"].callbacks.ModelCheckpoint):
                    undo.callback(setattr, callback, "filepath", callback.filepath)
                    callback.filepath = _Path(callback.filepath)
            for kind, path, callback in list(self._writing()):
                key = [kind, os.path.abspath(path)]
                if kind == "BackupAndRestore" and key in everywhere:
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


class _Path(str):
    """A path to be filled in, whose folder is there from then on.

    ModelCheckpoint makes it only if there is none, which fails where another worker is faster.
    """

    def format(self, *args: Any, **kwargs: Any) -> str:
        path = super().format(*args, **kwargs)
        if os.path.dirname(path) and "://" not in path:
            os.makedirs(os.path.dirname(path), exist_ok=True)
        return path


@contextlib.contextmanager
def _ending_together(callback: Any, workers: Workers) -> Iterator[None]:
    """Lets the callback remove its files only when it has written them in all workers."""
    before = callback.on_train_end

    def on_train_end(logs: Any = None) -> None:
        workers.exchange(None)
        before(logs)

    callback.on_train_end = on_train_end
    try:
        yield
    finally:
        del callback.on_train_end
