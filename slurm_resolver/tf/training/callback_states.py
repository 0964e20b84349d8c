"""What the other callbacks of a fit have changed since it began.

The state of a callback is that of its attributes, by their names::

    steps     "", 7                        a plain value, see `fit_state`
    recent    "deque", [0.5, 0.4]          the content of an object of a known class
    best      "Best", {"loss": 0.4}        an object of the program, whose attributes are plain
    count     "function", "?…"             anything else: a digest, to notice changes

Reading it runs no code that the checkpoint names: the values are put into the objects that the
program has made again.
"""

from __future__ import annotations

import collections
import contextlib
import io
import itertools
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
from slurm_resolver.tf.private_names import Method
from slurm_resolver.tf.training.fit_state import pack, unpack

Part = tuple[str, str]  # the class of an attribute, and its packed content or digest
State = dict[str, Part]  # of a callback, by attribute
# Begins a digest. Alone, it is that of a file, a lock, or an object that has one: the program makes
# these again.
_OPEN = "?"
# Keras sets the first two in every callback. It derives the others, which belong together, from
# a callback's arguments when the callback first compares; EarlyStopping negates `min_delta` then.
_OF_KERAS = (
    "model",
    "params",
    "monitor_op",
    "min_delta",
)
_WITH_VARIABLES = (keras.layers.Layer, keras.metrics.Metric, keras.optimizers.Optimizer)
_COLLECTIONS = (list, set, dict)
_numbers = itertools.count()


def _refill(collection: Any, items: Any) -> None:
    collection.clear()
    add = getattr(collection, "extend", None) or collection.update
    add(items)


def _set_state(generator: np.random.Generator, state: Any) -> None:
    generator.bit_generator.state = state


def _variables_of(owner: object) -> Any:
    """Returns the variables that an object has; a model's optimizer has its own."""
    optimizer = getattr(owner, "optimizer", None)
    return [*getattr(owner, "variables", [owner]), *getattr(optimizer, "variables", [])]


def _set_values(owner: Any, values: Any) -> None:
    if not getattr(getattr(owner, "optimizer", None), "built", True):
        owner.optimizer.build(owner.trainable_variables)
    variables = _variables_of(owner)
    if len(variables) != len(values):
        raise ValueError(f"{len(values)} variables were saved, and there are {len(variables)}")
    for variable, value in zip(variables, values):
        variable.assign(value)


def _set_attributes(owner: object, values: dict[str, object]) -> None:
    for name, value in values.items():
        _put(
            owner,
            name,
            "",
            value,
        )


def _attributes_of(value: object) -> dict[str, object]:
    """Returns the attributes of an object that has no other state; raises an error for others."""
    if value.__reduce_ex__(2)[2:] != (vars(value), None, None):
        raise TypeError(type(value))
    return vars(value)


# How to read and to set the content of an object.
_CONTENTS: dict[Any, tuple[Method, Method]] = {
    random.Random: (random.Random.getstate, random.Random.setstate),
    np.random.RandomState: (np.random.RandomState.get_state, np.random.RandomState.set_state),
    np.random.Generator: (lambda generator: generator.bit_generator.state, _set_state),
    (tf.Variable, getattr(keras, "Variable", tf.Variable), *_WITH_VARIABLES): (
        lambda owner: [variable.numpy() for variable in _variables_of(owner)],
        _set_values,
    ),
    (collections.deque, list, set): (list, _refill),
    dict: (dict, _refill),
    object: (_attributes_of, _set_attributes),
}


class CallbackStates:
    """The attributes that callbacks have changed since this was made."""

    def __init__(self, callbacks: Iterable[object], saved: Iterable[object] = ()) -> None:
        """`saved`: variables, and objects with variables, that are saved elsewhere."""
        self._callbacks = _by_name(callbacks)
        self._saved = {id(item) for item in [*saved, *self._callbacks.values()]}
        self._before = {name: self._read(item) for name, item in self._callbacks.items()}

    def collect(self) -> dict[str, State]:
        """Returns by callback what has changed.

        A callback is left out if some of it cannot be restored: half may be worse than nothing.
        """
        changes = {name: self._changes(name) for name in self._callbacks}
        return {
            name: state for name, state in changes.items() if all(map(_is_whole, state.values()))
        }

    def apply(self, states: dict[str, State]) -> None:
        """Restores the callbacks, and leaves out the states of callbacks that are not there."""
        for name, callback in self._callbacks.items():
            try:
                for attribute, (kind, packed) in states.get(name, {}).items():
                    _put(
                        callback,
                        attribute,
                        kind,
                        unpack(packed),
                    )
            except (AttributeError, LookupError, TypeError, ValueError) as error:
                kind = type(callback).__name__
                warn("the state of %s cannot be restored (%s): has it changed?", kind, error)

    def problems(self) -> Iterator[str]:
        """Yields why callbacks cannot be restored, and what to write."""
        for name, callback in self._callbacks.items():
            kind = type(callback).__name__
            for attribute, part in self._changes(name).items():
                if not _is_whole(part):
                    yield (
                        f"{kind}.{attribute} has the state of a {part[0]}, which cannot be saved, "
                        "and without it, nothing of the callback is restored: keep numbers, lists "
                        "and dicts in attributes of the callback, from __init__ on"
                    )
                    break
            for path in _overwritten_files(callback):
                yield (
                    f"{kind} writes {path!r} from the beginning at each start: append to it, as "
                    "CSVLogger(path, append=True) does"
                )

    def _changes(self, name: str) -> State:
        """Returns what has changed in a callback; a digest of what cannot be restored."""
        changed = {}
        for attribute, part in self._read(self._callbacks[name]).items():
            kind, text = part
            before = self._before[name].get(attribute, ("", ""))
            if text != _OPEN and part != before:
                changed[attribute] = part if kind in ("", before[0]) else (kind, _OPEN)
        return changed

    def _read(self, callback: object) -> State:
        return {
            name: _Reader(self._saved).part_of(value)
            for name, value in vars(callback).items()
            if name not in _OF_KERAS and id(value) not in self._saved
        }


def _by_name(callbacks: Iterable[object]) -> dict[str, object]:
    """Returns the callbacks by their kind and number in it, such as "EarlyStopping 1"."""
    named = {}
    counts = collections.Counter[str]()
    for callback in callbacks:
        kind = type(callback).__name__
        counts[kind] += 1
        # A progress bar belongs to its terminal.
        if not isinstance(callback, keras.callbacks.ProgbarLogger):
            named[f"{kind} {counts[kind]}"] = callback
    return named


def _overwritten_files(callback: object) -> Iterator[str]:
    """Yields the paths of the files that a callback has opened to write from the beginning."""
    for value in vars(callback).values():
        mode = str(getattr(value, "mode", ""))
        path = str(getattr(value, "name", ""))
        if isinstance(value, io.IOBase) and mode[:1] in "wx" and os.path.isfile(path):
            yield path


def _is_whole(part: Part) -> bool:
    return not part[1].startswith(_OPEN)


def _put(owner: object, name: str, kind: str, to: object) -> None:
    """Restores an attribute in place, as others may have the same object."""
    value = vars(owner).get(name)
    if kind or (isinstance(value, _COLLECTIONS) and type(value) is type(to)):
        content_of(value)[1](value, to)
    else:
        setattr(owner, name, to)


def content_of(value: object) -> tuple[Method, Method]:
    """Returns how to read and to set the content of an object."""
    return next(how for kind, how in _CONTENTS.items() if isinstance(value, kind))


class _Reader(pickle.Pickler):
    """Reads a value; `saved` are the ids of what is saved elsewhere."""

    def __init__(self, saved: set[int]) -> None:
        self._written = io.BytesIO()
        super().__init__(self._written)
        self._saved = saved

    def part_of(self, value: object) -> Part:
        """Returns the class of a value, "" if it is plain, and its content or digest."""
        kind = type(value).__name__
        with contextlib.suppress(Exception):
            return "", pack(value)
        with contextlib.suppress(Exception):  # whatever the value's own code raises
            return kind, pack(content_of(value)[0](value))
        with contextlib.suppress(Exception):  # of what cannot be copied
            self.dump(value)
            return kind, f"{_OPEN}{zlib.crc32(self._written.getvalue())}"
        return kind, _OPEN

    def persistent_id(self, value: object) -> object:
        """Returns what an object's digest is made from; None: all that it has."""
        if id(value) in self._saved:
            return 0
        if isinstance(value, type):
            return value.__qualname__
        if isinstance(value, types.FunctionType):
            below = _Reader(self._saved | {id(value)})
            return [below.part_of(cell.cell_contents) for cell in value.__closure__ or ()]
        if isinstance(value, _WITH_VARIABLES):
            return [
                variable.numpy()
                for variable in _variables_of(value)
                if id(variable) not in self._saved
            ]
        if isinstance(value, Iterator) and not isinstance(value, io.IOBase):
            return next(_numbers)  # never the same, as its state cannot be read
        return None
