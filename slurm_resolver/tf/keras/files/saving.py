"""Lets one worker write each file that several workers save.

All workers hold the same model. All of them may save it, or one alone. They agree through the file
system, so that every node gets the file if the path is on a disk of its own:

1. The worker that makes the folder `.saving-…` beside the path writes; the others wait until the
   folder is gone. Its name is a digest of what is saved.
2. It writes into that folder, and moves what it has written to the path in one step.
3. The others find the path changed, and do not save. A worker that comes later has been told so by
   the coordination service: writing an exported folder anew would disturb those that read it.
"""

from __future__ import annotations

import contextlib
import functools
import os
import shutil
import time
import zlib
from collections import Counter
from typing import Any

from slurm_resolver.cluster.addresses import identity_of
from slurm_resolver.coordination.progress import SAVING
from slurm_resolver.errors import SavingError
from slurm_resolver.tf.exchange import Workers
from slurm_resolver.tf.keras.files.callback_files import writing_together
from slurm_resolver.tf.keras.protocols import Model
from slurm_resolver.tf.keras.strategy_registry import are_several
from slurm_resolver.tf.keras.weight_comparison import digest_of
from slurm_resolver.tf.partition.outside_graph import call_outside
from slurm_resolver.tf.private_names import Method
from slurm_resolver.tf.reporter import reporter
from slurm_resolver.tf.resolver_cluster import slurm_step_of
from slurm_resolver.timeouts import Timeouts

_saves = Counter[str]()  # how often this process has saved to each path


def save_once(save: Method, model: Model, filepath: Any, *args: object, **kwargs: object) -> object:
    """Calls a function of Keras that saves a model, in one of the workers that save to a path."""
    local = isinstance(filepath, (str, os.PathLike)) and "://" not in str(filepath)
    if not (are_several() and local):
        return save(model, filepath, *args, **kwargs)
    # The workers do not wait for an incomplete save of an earlier start.
    start = identity_of(slurm_step_of(model.distribute_strategy.cluster_resolver))
    identity = f"{start} {args} {sorted(kwargs.items())} {digest_of(model)}"
    workers = getattr(model.distribute_strategy, "workers", None)  # not those of a coordinator
    with reporter.doing(SAVING), writing_together():
        write_once(filepath, identity, lambda path: save(model, path, *args, **kwargs), workers)
    return None


@functools.cache
def attributes_to_skip(find: Method, kind: str) -> object:
    """Returns which attributes of a kind of object, such as "Optimizer", Keras does not save.

    To list them, Keras makes an object of that kind, and its variables, at each save and load. In a
    strategy's scope, all workers have to make a variable together, but one may save alone.
    """
    return call_outside(functools.partial(find, kind))


def write_once(
    path: str | os.PathLike[str],
    identity: str,
    write: Method,
    workers: Workers | None = None,
) -> None:
    """Calls `write` in one of the processes that call this with the same path and identity.

    `write` gets a path of the same name in another folder. The file or new folder is then moved in
    one step, so that no process reads half of it. It exists for every process when this returns.
    Raises SavingError if the process that writes has stopped writing, and an error of the workers
    if one of them is lost.
    """
    path = os.path.realpath(path)  # replaces the target of a link, not the link
    folder, name = os.path.split(path)
    scratch = os.path.join(folder, f".saving-{zlib.crc32(f'{name} {identity}'.encode()):08x}")
    client = workers and workers.client
    _saves[path] += 1
    save = f"saved {path} {_saves[path]}"
    before = _state(path)
    waited = _take(scratch, path, workers)
    try:
        state = _state(path)
        if waited and state not in (None, before):
            return
        if client and client.told.get(save, {}).get("value") == f"{identity} {state}":
            return
        write(os.path.join(scratch, name))
        _move(scratch, folder, last=name)
        if client:
            client.tell(save, f"{identity} {_state(path)}")
            # A worker that waits for the folder knows of this save before it may take it.
            client.wait_for(lambda: save in client.told, 1.0)
    finally:
        shutil.rmtree(scratch, ignore_errors=True)


def _take(scratch: str, path: str, workers: Workers | None) -> bool:
    """Makes the folder once no other process has it; returns whether another process had it."""
    seen = None
    since = time.monotonic()
    while True:
        with contextlib.suppress(FileExistsError):
            os.makedirs(scratch)  # asks the file server itself; stat may be answered from a cache
            return seen is not None
        if workers:
            workers.refuse_loss()
        states = [
            _state(os.path.join(parent, name))
            for parent, _, files in os.walk(scratch)
            for name in files
        ]
        if states != seen:
            seen = states
            since = time.monotonic()
        elif time.monotonic() - since > Timeouts.saving:
            raise SavingError(
                f"{path}: another task is saving it in {scratch}, and has written nothing for "
                f"{Timeouts.saving:.0f} s. Read its log; if it was killed, remove that folder."
            )
        time.sleep(0.02)


def _state(path: str) -> tuple[int, ...] | None:
    """Returns values that change when a file or folder is replaced; None if it does not exist."""
    try:
        found = os.stat(path)
    except FileNotFoundError:
        return None
    return found.st_ino, found.st_mtime_ns


def _move(new: str, old: str, last: str) -> None:
    """Replaces a file, or the files of a folder, by new ones.

    The file `last` comes after all others, such as the parts of a divided file.
    """
    if os.path.isdir(new) and os.path.isdir(old):
        for name in sorted(os.listdir(new), key=lambda name: name == last):
            _move(os.path.join(new, name), os.path.join(old, name), last)
    else:
        os.replace(new, old)
