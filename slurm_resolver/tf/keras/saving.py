"""Keras 3's `save`, `save_weights` and `export`, of which one worker writes the files.

All workers hold the same model, and may save it all, or one of them alone. They meet in the file
system alone, so that where the path is on a disk of each node, every node gets the file.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import time
import zlib
from typing import Any, Callable, Optional, Tuple

from slurm_resolver.errors import SavingError
from slurm_resolver.slurm.step import SlurmStep
from slurm_resolver.tf.keras import are_several
from slurm_resolver.tf.progress import reporter

# As long the one that writes may add nothing to its files before the others give up.
STALLED_SECONDS = 300.0
_PAUSE_SECONDS = 0.02


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
    # What an earlier run has left half saved is not waited for.
    run = f"{step.job_id}.{step.step_id}.{step.restart_count}"
    identity = f"{run} {kind} {args} {sorted(kwargs.items())} {digest}"
    with reporter.saving():
        write_once(os.fspath(filepath), identity, lambda path: save(model, path, *args, **kwargs))
    return None


def write_once(path: str, identity: str, write: Callable[[str], object]) -> None:
    """Calls `write` in one of the processes that call this with the same path and identity.

    `write` gets another path, of the same name in a folder beside. What it has made there is then
    put into its place: a file, or a folder that is new, in one step, so that nobody sees a half of
    it. All of it is there when this returns, in every process.

    Raises:
        SavingError: if the process that writes has stopped doing so.
    """
    path = os.path.realpath(path)  # the file that a link leads to is replaced, not the link
    folder, name = os.path.split(path)
    digest = hashlib.sha256(f"{name} {identity}".encode()).hexdigest()[:16]
    scratch = os.path.join(folder, f".saving-{digest}")
    before = _state(path)
    if not _make(scratch):
        _wait_until_gone(scratch, path)
        if _state(path) not in (None, before):
            os.rmdir(scratch)
            return
    try:
        write(os.path.join(scratch, name))
        # What stands beside belongs to it, such as the parts of a file in several: these first.
        for made in sorted(os.listdir(scratch), key=lambda made: made == name):
            _move(os.path.join(scratch, made), os.path.join(folder, made))
    finally:
        shutil.rmtree(scratch, ignore_errors=True)


def _make(folder: str) -> bool:
    """Makes a folder, in one process of all that try; whether this is the one."""
    try:
        os.mkdir(folder)
    except FileExistsError:
        return False
    return True


def _wait_until_gone(scratch: str, path: str) -> None:
    """Returns when the folder of the process that writes was gone, and is now this process' own.

    To make it asks the file server itself, where a look might be answered from what was seen last.
    """
    seen, since = -1, time.monotonic()
    while not _make(scratch):
        size = sum(
            state[2] + 1
            for parent, _, names in os.walk(scratch)
            for state in (_state(os.path.join(parent, name)) for name in names)
            if state
        )
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
    """What changes when a file or folder is replaced; None where there is none."""
    try:
        found = os.stat(path)
    except FileNotFoundError:
        return None
    return found.st_ino, found.st_mtime_ns, found.st_size


def _move(new: str, old: str) -> None:
    """Puts a file into the place of another; a folder's files into those of the folder there."""
    if os.path.isdir(new) and os.path.isdir(old):
        for name in sorted(os.listdir(new), key=lambda name: not os.path.isdir(f"{new}/{name}")):
            _move(os.path.join(new, name), os.path.join(old, name))
    else:
        os.replace(new, old)
