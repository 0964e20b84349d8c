"""Lets one worker write each file that callbacks of `fit` write, whichever callbacks these are.

Every worker runs all callbacks: a hook, such as `on_epoch_end`, may call `predict`, which all
workers compute together. Only what the hooks write is one worker's:

1. Before a worker writes to a path for the first time, it claims the path. The coordination service
   passes all claims on in one order, so that all workers agree on who was first.
2. The first worker writes to the path. Each other worker writes to a folder of its own instead, and
   reads there what it has written, so that a hook does the same in every worker.

Paths that differ between workers, such as one with a rank in its name, are each worker's own.

Only the functions of `_FUNCTIONS` are redirected, and only in the hooks of callbacks. What
libraries write by themselves is not noticed, nor are files that were opened before `fit`.
"""

from __future__ import annotations

import atexit
import contextlib
import functools
import os
import pkgutil
import shutil
import tempfile
import threading
from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Any

from slurm_resolver.tf.exchange import Workers
from slurm_resolver.tf.private_names import Method

_TOPIC = "writes "  # what a worker tells the others, before the path

# What hooks call, by the kinds of the first arguments: "r", a path that is read; "w", one that is
# written; "c", what exists and is changed; "m", a file that is opened in the mode of the next
# argument; "-", anything else.
_FUNCTIONS = {
    "m": "builtins.open io.open os.open",
    "-m": "h5py.File.__init__",
    "w": "os.mkdir sqlite3.connect sqlite3.dbapi2.connect tensorflow.summary.create_file_writer",
    "rw": "os.link",
    "-w": "os.symlink",
    "cw": "os.rename os.replace",
    "c": "os.chmod os.remove os.rmdir os.setxattr os.truncate os.unlink os.utime shutil.rmtree",
    "r": "os.access os.listxattr os.lstat os.stat",
}
# What these arguments may be called, in their order. Not all functions have a signature.
_KEYWORDS = ("logdir", "database", "file", "path", "src", "dst", "name")
_WRITING = os.O_WRONLY | os.O_RDWR | os.O_CREAT  # flags of `os.open`

_current = threading.local()  # its `files` are those of the hook that this thread runs


class CallbackFiles:
    """The files that the callbacks of this worker write."""

    hook = ""  # that runs, such as "CSVLogger.on_epoch_end 2"
    creates = False  # whether the last path did not exist when this hook began to write it

    def __init__(self, workers: Workers) -> None:
        self._workers = workers
        self._rank = workers.client.address.rank
        self._hooks = Counter[str]()
        self._folder = tempfile.TemporaryDirectory(prefix="slurm_resolver-")
        atexit.register(self._folder.cleanup)

    @contextlib.contextmanager
    def sharing(self, callbacks: Sequence[object]) -> Iterator[None]:
        """Lets one worker write each path that hooks of these callbacks write in the block."""
        with contextlib.ExitStack() as undo:
            for kinds, places in _FUNCTIONS.items():
                for place in places.split():
                    holder, _, name = place.rpartition(".")
                    owner = pkgutil.resolve_name(holder)
                    undo.enter_context(setting(owner, name, _redirect(getattr(owner, name), kinds)))
            for callback in callbacks:
                for name, hook in _hooks_of(callback):
                    label = f"{type(callback).__name__}.{name}"
                    undo.enter_context(setting(callback, name, self._within(hook, label)))
            yield

    def _within(self, hook: Method, label: str) -> Method:
        """Returns a hook of a callback, whose files are one worker's."""

        def call(*args: object, **kwargs: object) -> object:
            self._hooks[label] += 1
            current = f"{label} {self._hooks[label]}"
            with setting(self, "hook", current), setting(_current, "files", self):
                return hook(*args, **kwargs)

        return call

    def place(self, path: object, kind: str) -> Any:
        """Returns where this worker reads or writes a path; see `_FUNCTIONS` for the kind."""
        if kind == "-" or not isinstance(path, (str, bytes, os.PathLike)):
            return path
        name = os.fsdecode(path)
        # a database in memory, the URI of one, and what is redirected already
        if not name or name.startswith((":", "file:", self._folder.name)) or _is_device(name):
            return path
        full = os.path.abspath(name)
        reads = kind == "r"
        rank, hook = self._claim(full, reads)
        self.creates = hook == self.hook
        own = self._folder.name + full
        is_own = os.path.lexists(own)
        # Another worker may still write what it creates in this hook.
        if rank == self._rank or (reads and not is_own and not self.creates):
            return path
        os.makedirs(os.path.dirname(own), exist_ok=True)
        if not (reads or hook or is_own):
            with contextlib.suppress(FileNotFoundError, IsADirectoryError):
                shutil.copy2(full, own)
        return own

    def _claim(self, full: str, reads: bool) -> tuple[int, str]:
        """Returns who writes a path: the rank, and the hook that creates it.

        The hook is '' if the path existed before. The first worker that claims a path writes it;
        one that only reads it claims nothing.
        """
        client = self._workers.client
        topic = _TOPIC + full
        if not reads and topic not in client.told:
            client.tell(topic, "" if os.path.lexists(full) else self.hook)
            client.wait_for(lambda: topic in client.told or self._workers.loss or client.refusal)
        claim = client.told.get(topic, {"rank": self._rank, "value": ""})
        return claim["rank"], claim["value"]

    def call(self, original: Method, kinds: str, /, *args: Any, **kwargs: Any) -> object:
        """Calls a function with redirected paths; their `kinds` are those in `_FUNCTIONS`."""
        places = list(args)
        for number, kind in enumerate(kinds):
            if kind == "m":
                kind = _kind_of_mode(
                    [*args[number + 1 :], kwargs.get("flags", kwargs.get("mode", "r"))][0]
                )
            place = self.place(args[number], kind)
            if kind == "c" and place is not args[number] and not os.path.lexists(place):
                return None  # the worker that writes it changes it
            places[number] = place
        if kinds == "cw" and places != list(args):
            return shutil.move(*places[:2])  # perhaps to another file system
        try:
            return original(*places, **kwargs)
        except FileExistsError:
            # Another worker may have made the folder, when all began to save a model there.
            if original.__name__ != "mkdir" or not self.creates:
                raise
            return None


def _hooks_of(callback: object) -> Iterator[tuple[str, Method]]:
    """Yields the hooks that a callback has of its own, with their names."""
    import keras

    base = keras.callbacks.Callback
    for name in dir(base):
        if name.startswith(("on_", "set_")):
            hook = getattr(callback, name)
            if getattr(hook, "__func__", None) is not getattr(base, name):
                yield name, hook


def _is_device(path: str) -> bool:
    return os.path.exists(path) and not os.path.isfile(path) and not os.path.isdir(path)


@contextlib.contextmanager
def setting(owner: object, name: str, value: object) -> Iterator[None]:
    """Sets an attribute in the block."""
    before = vars(owner).copy()
    setattr(owner, name, value)
    try:
        yield
    finally:
        if name in before:
            setattr(owner, name, before[name])
        else:
            delattr(owner, name)


def writing_together() -> contextlib.AbstractContextManager[None]:
    """Returns a context in which this thread's files are not redirected.

    It is for what all workers do together in a hook, such as saving a model.
    """
    return setting(_current, "files", None)


def is_in_hook() -> bool:
    """Whether this thread runs a hook of a callback, and nothing that all workers do together."""
    return getattr(_current, "files", None) is not None


def _redirect(original: Method, kinds: str) -> Method:
    """Returns a function that redirects the paths among its arguments in the hooks of callbacks."""

    @functools.wraps(original)
    def call(*args: Any, **kwargs: Any) -> object:
        files = getattr(_current, "files", None)
        if files is None or kwargs.get("dir_fd") is not None:
            return original(*args, **kwargs)
        missing = max(len(kinds) - len(args), 0)
        named = [name for name in _KEYWORDS if name in kwargs][:missing]
        args += tuple(map(kwargs.pop, named))
        if len(args) < len(kinds):
            return original(*args, **kwargs)
        with writing_together():
            return files.call(original, kinds, *args, **kwargs)

    return call


def _kind_of_mode(mode: str | int) -> str:
    """Returns the kind of a path that is opened in a mode of `open`, or with flags of `os.open`."""
    writes = mode & _WRITING if isinstance(mode, int) else set(mode) & set("wax+")
    return "w" if writes else "r"
