"""What the other callbacks of a fit have changed since it began.

The state of a callback is that of its attributes, of theirs, and so on, by their paths::

    steps            "", 7                          a plain value, see `fit_state`
    recent           "deque", [0.5, 0.4]            the content of an object of a known class
    best             "Best", ""                     an object of the program, or a function
    best/loss        "", 0.4                        its attribute, or what the function has enclosed
    file             "TextIOWrapper?", ""           remains as the program has made it
    rates            "lost", "generator"            has a state that cannot be read

Reading it runs no code that the checkpoint names: the values are put into the objects that the
program has made again.
"""

from __future__ import annotations

import collections
import contextlib
import functools
import io
import os
import pickle
import random
import types
import zlib
from collections.abc import Iterable, Iterator
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from slurm_resolver.log import warn
from slurm_resolver.tf.training.fit_state import pack, unpack

State = dict[str, tuple[str, str]]  # of a callback; by path the kind, and the packed value
_LOST = "lost"
_OPEN = "?"  # ends the kind of what cannot be copied, or has such a part: a file, a lock
# Keras sets the first two in every callback. It derives the others, which belong together, from
# a callback's arguments when the callback first compares; EarlyStopping negates `min_delta` then.
_OF_KERAS = (
    "model",
    "params",
    "monitor_op",
    "min_delta",
)


def _refill(collection: Any, items: Any) -> None:
    collection.clear()
    add = getattr(collection, "extend", None) or collection.update
    add(items)


def _set_state(generator: Any, state: Any) -> None:
    generator.bit_generator.state = state


# How to read and to set the content of an object.
_CONTENTS: dict[Any, Any] = {
    random.Random: (random.Random.getstate, random.Random.setstate),
    np.random.RandomState: (np.random.RandomState.get_state, np.random.RandomState.set_state),
    np.random.Generator: (lambda generator: generator.bit_generator.state, _set_state),
    tf.Variable: (lambda variable: variable.numpy(), lambda variable, to: variable.assign(to)),
    keras.Variable: (lambda variable: variable.numpy(), lambda variable, to: variable.assign(to)),
    collections.deque: (list, _refill),
    list: (list, _refill),
    set: (set, _refill),
    dict: (dict, _refill),
}


class CallbackStates:
    """The attributes that callbacks have changed since this was made."""

    def __init__(self, callbacks: Iterable[Any], saved: Iterable[Any] = ()) -> None:
        """`saved` are variables that are saved elsewhere."""
        self._saved = set(map(id, saved))
        self._callbacks: dict[str, Any] = {}
        counts = collections.Counter[str]()
        for callback in callbacks:
            kind = type(callback).__name__
            counts[kind] += 1
            # A progress bar belongs to its terminal.
            if not isinstance(callback, keras.callbacks.ProgbarLogger):
                self._callbacks[f"{kind} {counts[kind]}"] = callback
        self._before = {name: self._read(one) for name, one in self._callbacks.items()}

    def collect(self) -> dict[str, State]:
        """Returns by callback what has changed.

        A callback is left out if some of it cannot be restored: half may be worse than nothing.
        """
        found = {}
        for name in self._callbacks:
            changed, lost = self._compare(name)
            if changed and not lost:
                found[name] = changed
        return found

    def apply(self, states: dict[str, State]) -> None:
        """Restores those callbacks that exist."""
        for name, callback in self._callbacks.items():
            try:
                _restore(callback, "", states.get(name, {}))
            except (AttributeError, LookupError, TypeError, ValueError) as error:
                warn("the state of %s cannot be restored (%s): has it changed?", name[:-2], error)

    def problems(self) -> Iterator[str]:
        """Yields why callbacks cannot be restored, and what to write."""
        for name, callback in self._callbacks.items():
            kind = type(callback).__name__
            _, lost = self._compare(name)
            for path, what in [*lost.items()][:1]:
                yield (
                    f"{kind}.{path.replace('/', '.')} has the state of a {what}, which cannot be "
                    "saved: keep numbers, lists and dicts in attributes, or make it in __init__"
                )
            for value in vars(callback).values():
                mode = str(getattr(value, "mode", ""))
                path = str(getattr(value, "name", ""))
                if isinstance(value, io.IOBase) and mode[:1] in "wx" and os.path.isfile(path):
                    yield (
                        f"{kind} writes {path!r} from the beginning at each start: append to it, "
                        "as CSVLogger(path, append=True) does"
                    )

    def _compare(self, name: str) -> tuple[State, dict[str, str]]:
        """Returns what has changed in a callback, and the classes of what cannot be restored."""
        before = self._before[name]
        now = self._read(self._callbacks[name])
        changed = {path: part for path, part in now.items() if before.get(path) != part}
        lost = {}
        late: list[str] = []  # what was made since, such as a writer, and is made again
        for path, (kind, text) in now.items():
            is_new = kind and before.get(path, ("", ""))[0] != kind
            if path.startswith(tuple(late)) or (is_new and kind.endswith(_OPEN)):
                late.append(f"{path}/")
                changed.pop(path, None)
            elif is_new or kind == _LOST:
                lost[path] = text or kind.split()[0]
        return changed, lost

    def _read(self, callback: Any) -> State:
        parts = _parts_of(callback)
        return {
            path: part
            for key, (value, _) in parts.items()
            if key not in _OF_KERAS
            for path, part in self._read_part(key, value, [callback])
        }

    def _read_part(self, path: str, value: Any, within: list[Any]) -> Iterator[Any]:
        """Yields the paths, kinds and values of an object and of its parts."""
        kind = type(value).__name__
        if id(value) in self._saved or any(value is one for one in within):
            return
        content = _content_of(value)
        parts = _parts_of(value)
        packed = _packed(value)
        if packed:
            yield path, ("", packed)
        elif content and _packed(content[0](value)):
            yield path, (kind, _packed(content[0](value)))
        elif parts:
            # A list that grows has no objects yet at the new places when it is restored.
            count = f" of {len(parts)}" if isinstance(value, (list, tuple, dict)) else ""
            below = [
                each
                for key, (part, _) in parts.items()
                for each in self._read_part(f"{path}/{key}", part, [*within, value])
            ]
            is_open = any(kind.endswith(_OPEN) for _, (kind, _) in below)
            yield path, (kind + count + _OPEN * is_open, "")
            yield from below
        elif isinstance(value, Iterator) and not isinstance(value, io.IOBase):
            yield path, (_LOST, kind)
        else:
            yield path, (kind + _digest(value), "")


def _packed(value: Any) -> str:
    """Returns a plain value as text, "" for any other value."""
    with contextlib.suppress(TypeError, RecursionError):
        return pack(value)
    return ""


def _digest(value: Any) -> str:
    """Returns what tells a value from one that has changed."""
    with contextlib.suppress(Exception):  # whatever the value's own code raises
        return f" {zlib.crc32(pickle.dumps(value))}"
    return _OPEN


def _content_of(value: Any) -> Any:
    """Returns how to read and to set the content of an object of a known class, else None."""
    return next((how for kind, how in _CONTENTS.items() if isinstance(value, kind)), None)


def _parts_of(value: Any) -> dict[str, tuple[Any, Any]]:
    """Returns the parts of an object by their names, and how to set them."""
    items: Iterable[tuple[Any, Any]] = ()
    put = getattr(value, "__setitem__", None)
    if isinstance(value, types.FunctionType):
        cells = enumerate(value.__closure__ or ())
        return {
            str(at): (cell.cell_contents, functools.partial(setattr, cell, "cell_contents"))
            for at, cell in cells
        }
    if isinstance(value, (keras.layers.Layer, keras.metrics.Metric, keras.optimizers.Optimizer)):
        items = enumerate(value.variables)
    elif isinstance(value, (list, tuple)):
        items = enumerate(value)
    elif isinstance(value, dict):
        items = value.items()
    elif hasattr(value, "__dict__") and _is_its_attributes(value):
        items = vars(value).items()
        put = functools.partial(setattr, value)
    return {str(key): (part, functools.partial(put, key) if put else None) for key, part in items}


def _is_its_attributes(value: Any) -> bool:
    """Whether an object has no other state; a file has, and a Logger is copied in its own way."""
    kind: Any = type(value)
    with contextlib.suppress(Exception):  # of what cannot be copied
        return kind.__reduce__ == object.__reduce__ and bool(value.__reduce_ex__(2))
    return False


def _restore(owner: Any, within: str, state: State) -> None:
    """Restores the parts of an object, whose path is `within`."""
    parts = _parts_of(owner)
    names = {path[len(within) :].split("/")[0] for path in state if path.startswith(within)}
    for name in names:
        value, put = parts.get(name, (None, functools.partial(setattr, owner, name)))
        kind, text = state.get(within + name, ("", ""))
        content = _content_of(value)
        if not text:
            _restore(value, f"{within}{name}/", state)
        elif content and (kind or type(unpack(text)) is type(value)):
            content[1](value, unpack(text))
        else:
            put(unpack(text))
