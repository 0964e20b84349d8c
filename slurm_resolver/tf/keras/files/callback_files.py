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
import itertools
import os
import pkgutil
import shutil
import tempfile
import threading
from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Any

from slurm_resolver.coordination.wire import Message
from slurm_resolver.tf.exchange import Workers
from slurm_resolver.tf.private_names import Method

_TOPIC = "writes "  # what a worker tells the others, before the path

# What hooks call, by the kinds of the first arguments: "r", a path that is read; "w", one that is
# written; "c", what exists and is changed; "l", a folder that is listed; "m", a file that is opened
# in the mode of the next argument; "-", anything else.
_FUNCTIONS = {
    "m": "builtins.open io.open os.open tarfile.bltn_open",
    "-m": "h5py.File.__init__",
    "w": "os.mkdir sqlite3.connect sqlite3.dbapi2.connect tensorflow.summary.create_file_writer",
    "rw": "os.link",
    "-w": "os.symlink",
    "cw": "os.rename os.replace",
    "c": "os.chmod os.remove os.rmdir os.setxattr os.truncate os.unlink os.utime shutil.rmtree",
    "r": "os.access os.listxattr os.lstat os.stat",
    "l": "os.listdir os.scandir",
}
# What these arguments may be called, in their order. Not all functions have a signature.
_KEYWORDS = ("logdir", "database", "file", "path", "src", "dst", "name")
_WRITING = os.O_WRONLY | os.O_RDWR | os.O_CREAT  # flags of `os.open`

_current = threading.local()  # its `files` are those of the hook that this thread runs


class CallbackFiles:
    """The files that the callbacks of this worker write."""

    _hook = ""  # that runs, such as "CSVLogger.on_epoch_end 2"
    _creates = False  # whether the last path did not exist when this hook began to write it

    def __init__(self, workers: Workers) -> None:
        self._workers = workers
        self._rank = workers.client.address.rank
        self._hooks = Counter[str]()
        self._folder = tempfile.mkdtemp(prefix="slurm_resolver-")
        atexit.register(shutil.rmtree, self._folder, ignore_errors=True)

    @contextlib.contextmanager
    def sharing(self, callbacks: Sequence[object]) -> Iterator[None]:
        """Lets one worker write each path that hooks of these callbacks write in the block."""
        import keras

        base = keras.callbacks.Callback
        names = [name for name in dir(base) if name.startswith(("on_", "set_"))]
        with contextlib.ExitStack() as undo:
            for kinds, places in _FUNCTIONS.items():
                for place in places.split():
                    holder, _, name = place.rpartition(".")
                    owner = pkgutil.resolve_name(holder)
                    undo.enter_context(setting(owner, name, _redirect(getattr(owner, name), kinds)))
            for callback, name in itertools.product(callbacks, names):
                hook = getattr(callback, name)
                if getattr(hook, "__func__", None) is not getattr(base, name):
                    label = f"{type(callback).__name__}.{name}"
                    undo.enter_context(setting(callback, name, self._within(hook, label)))
            yield

    def _within(self, hook: Method, label: str) -> Method:
        """Returns a hook of a callback, whose files are one worker's."""

        def call(*args: object, **kwargs: object) -> object:
            self._hooks[label] += 1
            self._hook = f"{label} {self._hooks[label]}"
            with setting(_current, "files", self):
                return hook(*args, **kwargs)

        return call

    def _place(self, path: Any, kind: str) -> Any:
        """Returns where this worker reads or writes a path; see `_FUNCTIONS` for the kind."""
        if not isinstance(path, (str, bytes, os.PathLike)):
            return path
        name = os.fsdecode(path)
        is_device = os.path.exists(name) and not (os.path.isfile(name) or os.path.isdir(name))
        # a database in memory, the URI of one, and what is redirected already
        if not name or name.startswith((":", "file:", self._folder)) or is_device:
            return path
        full = os.path.abspath(name)
        reads = kind in "rl"
        claim = self._claim(full, reads)
        creates = claim["value"]
        self._creates = creates == self._hook
        own = self._folder + full
        is_own = os.path.lexists(own)
        # Another worker may still write what it creates in this hook.
        if (
            claim["rank"] == self._rank
            or (reads and not is_own and not self._creates)
            or (kind == "l" and not creates)
        ):
            return path
        os.makedirs(os.path.dirname(own), exist_ok=True)
        if not (reads or creates or is_own):
            with contextlib.suppress(FileNotFoundError):
                if os.path.isdir(full):
                    os.mkdir(own)
                else:
                    shutil.copy2(full, own)
        return own

    def _claim(self, full: str, reads: bool) -> Message:
        """Returns who writes a path, by "rank", and as "value" the hook that creates it.

        The hook is '' if the path existed before. The first worker that claims a path writes it;
        one that only reads it claims nothing.
        """
        client = self._workers.client
        topic = _TOPIC + full
        if not reads and topic not in client.told:
            client.tell(topic, "" if os.path.lexists(full) else self._hook)
            client.wait_for(
                lambda: (
                    topic in client.told
                    or self._workers.loss
                    or client.refusal
                    or "closing" in client.latest
                )
            )
        claim: Message = client.told.get(topic, {"rank": self._rank, "value": ""})
        return claim

    def call(self, original: Method, kinds: str, args: list[Any], kwargs: dict[str, Any]) -> object:
        """Calls a function with redirected paths; their `kinds` are those in `_FUNCTIONS`."""
        named = [name for name in _KEYWORDS if name in kwargs]
        while named and len(args) < len(kinds):
            args.append(kwargs.pop(named.pop(0)))
        places = args.copy()
        for number, (kind, path) in enumerate(zip(kinds, args)):
            if kind == "m":
                mode = kwargs.get("flags", kwargs.get("mode", "r"))
                if number + 1 < len(args):
                    mode = args[number + 1]
                writes = mode & _WRITING if isinstance(mode, int) else set(mode) & set("wax+")
                kind = "w" if writes else "r"
            if kind != "-":
                places[number] = self._place(path, kind)
            is_own = places[number] is not path
            if kind == "c" and is_own and not os.path.lexists(places[number]):
                return None  # the worker that writes it changes it
        if kinds == "cw" and places != args:
            return shutil.move(*places[:2])  # perhaps to another file system
        try:
            return original(*places, **kwargs)
        except FileExistsError:
            # Another worker may have made the folder, when all began to save a model there.
            if original.__name__ != "mkdir" or not self._creates:
                raise
            return None


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
        with writing_together():
            return files.call(original, kinds, list(args), kwargs)

    return call
