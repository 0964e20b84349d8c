"""Lets one worker write each file that several workers save, or write in callbacks.

All workers hold the same model. All of them may save it, or one alone. They agree through the file
system, so that every node gets the file if the path is on a disk of its own.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import os
import shutil
import sys
import tempfile
import time
import zlib
from typing import Any, Callable, Dict, Iterator, List, Optional, Sequence, Tuple

from slurm_resolver.errors import SavingError
from slurm_resolver.slurm.step import SlurmStep
from slurm_resolver.tf.keras import are_several
from slurm_resolver.tf.progress import reporter

STALLED_SECONDS = 300.0  # until the others give up if the writing worker adds nothing
_PAUSE_SECONDS = 0.02
# The callbacks that write files themselves, and the attribute with the path. ModelCheckpoint saves
# with the model's own methods.
_PATHS = {"CSVLogger": "filename", "TensorBoard": "log_dir", "BackupAndRestore": "backup_dir"}


def save_once(
    kind: str, save: Callable[..., Any], model: Any, filepath: Any, *args: Any, **kwargs: Any
) -> Any:
    """Saves a model in one of the workers that save it to the same path."""
    local = isinstance(filepath, (str, os.PathLike)) and "://" not in str(filepath)
    if not (are_several() and local and os.path.isdir(os.path.dirname(os.path.realpath(filepath)))):
        return save(model, filepath, *args, **kwargs)
    if os.path.exists(filepath) and not kwargs.get("overwrite", True):
        return save(model, filepath, *args, **kwargs)  # which asks
    step, digest = SlurmStep.read(), 0
    for variable in [*model.weights, *getattr(model.optimizer, "variables", ())]:
        digest = zlib.crc32(memoryview(variable.numpy()).cast("B"), digest)
    # The workers do not wait for an incomplete save of an earlier run.
    run = f"{step.job_id}.{step.step_id}.{step.restart_count}"
    identity = f"{run} {kind} {args} {sorted(kwargs.items())} {digest}"
    with reporter.saving():
        write_once(os.fspath(filepath), identity, lambda path: save(model, path, *args, **kwargs))
    return None


def write_once(path: str, identity: str, write: Callable[[str], object]) -> None:
    """Calls `write` in one of the processes that call this with the same path and identity.

    `write` gets a path of the same name in another folder. The file or new folder is then moved in
    one step, so that no process reads half of it. It exists for every process when this returns.

    Raises:
        SavingError: if the process that writes has stopped writing.
    """
    path = os.path.realpath(path)  # replaces the target of a link, not the link
    folder, name = os.path.split(path)
    digest = hashlib.sha256(f"{name} {identity}".encode()).hexdigest()[:16]
    scratch = os.path.join(folder, f".saving-{digest}")
    before = _state(path)
    waited = _take(scratch, path)
    try:
        if waited and _state(path) not in (None, before):
            return
        write(os.path.join(scratch, name))
        # Other files, such as the parts of a divided file, come first.
        for made in sorted(os.listdir(scratch), key=lambda made: made == name):
            _move(os.path.join(scratch, made), os.path.join(folder, made))
    finally:
        shutil.rmtree(scratch, ignore_errors=True)


def _take(scratch: str, path: str) -> bool:
    """Makes the folder once no other process has it; returns whether another process had it.

    mkdir asks the file server itself; stat may be answered from a cache.
    """
    seen, since = -1, time.monotonic()
    while True:
        with contextlib.suppress(FileExistsError):
            os.mkdir(scratch)
            return seen >= 0
        files = [os.path.join(parent, name) for parent, _, own in os.walk(scratch) for name in own]
        size = sum(state[2] + 1 for state in map(_state, files) if state)
        if size != seen:
            seen, since = size, time.monotonic()
        elif time.monotonic() - since > STALLED_SECONDS:
            raise SavingError(
                f"{path}: another task has begun to save it in {scratch}, and has written nothing "
                f"for {STALLED_SECONDS:.0f} s; expected it to end. Read that task's log; if it has "
                "been killed, remove that folder."
            )
        time.sleep(_PAUSE_SECONDS)


def _state(path: str) -> Optional[Tuple[int, ...]]:
    """Returns values that change when a file or folder is replaced; None if it does not exist."""
    with contextlib.suppress(FileNotFoundError):
        found = os.stat(path)
        return found.st_ino, found.st_mtime_ns, found.st_size
    return None


def _move(new: str, old: str) -> None:
    """Replaces a file, or the files of a folder, by new ones."""
    if os.path.isdir(new) and os.path.isdir(old):
        for name in sorted(os.listdir(new), key=lambda name: not os.path.isdir(f"{new}/{name}")):
            _move(os.path.join(new, name), os.path.join(old, name))
    else:
        os.replace(new, old)


def writing(callbacks: Any) -> Iterator[Tuple[str, str, Any]]:
    """Yields the kind and path of each callback of `fit` that writes files itself, and it."""
    known = sys.modules["keras"].callbacks
    listed = getattr(callbacks, "callbacks", callbacks)  # a list, one, None, or a CallbackList
    for callback in listed if isinstance(listed, list) else [listed]:
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
