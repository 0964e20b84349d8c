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
import os
import pickle
import random
import time
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

Part = tuple[str, bytes]  # the class of an attribute, and its packed content or digest
State = dict[tuple[str, str], Part]  # by callback and attribute
# Begins a digest. Alone, it is that of a file, a lock, or an object that has one: the program makes
# these again.
_OPEN = b"?"
# Keras sets the first two in every callback. It derives the others, which belong together, from
# a callback's arguments when the callback first compares; EarlyStopping negates `min_delta` then.
_OF_KERAS = (
    "model",
    "params",
    "monitor_op",
    "min_delta",
)
_WITH_VARIABLES = (keras.layers.Layer, keras.metrics.Metric, keras.optimizers.Optimizer)


def _refill(collection: Any, items: Any) -> None:
    add = getattr(collection, "extend", None) or collection.update
    collection.clear()
    add(items)


def _variables_of(owner: object) -> list[Any]:
    """Returns the variables that an object has; a model's optimizer has its own."""
    optimizer = getattr(owner, "optimizer", None)
    return [*getattr(owner, "variables", [owner]), *getattr(optimizer, "variables", [])]


def set_values(variables: list[Any], values: Any) -> None:
    """Gives variables these values; raises ValueError if they are not of these shapes."""
    tf.nest.map_structure(lambda variable, value: variable.assign(value), variables, values)


def _set_variables(owner: Any, values: Any) -> None:
    if not getattr(getattr(owner, "optimizer", None), "built", True):
        owner.optimizer.build(owner.trainable_variables)
    set_values(_variables_of(owner), values)


def _attributes_of(value: object) -> dict[str, object]:
    """Returns the attributes of an object that has no other state; raises an error for others."""
    if value.__reduce_ex__(2)[2:] != (vars(value), None, None):
        raise TypeError(type(value))
    return vars(value)


def _set_attributes(owner: object, values: dict[str, object]) -> None:
    for name, value in values.items():
        _put(
            owner,
            name,
            "",
            value,
        )


# How to read and to set the content of an object.
_CONTENTS: dict[Any, tuple[Method, Method]] = {
    random.Random: (random.Random.getstate, random.Random.setstate),
    np.random.RandomState: (np.random.RandomState.get_state, np.random.RandomState.set_state),
    np.random.Generator: (
        lambda generator: generator.bit_generator.state,
        lambda generator, state: setattr(generator.bit_generator, "state", state),
    ),
    (tf.Variable, getattr(keras, "Variable", tf.Variable), *_WITH_VARIABLES): (
        lambda owner: [variable.numpy() for variable in _variables_of(owner)],
        _set_variables,
    ),
    (collections.deque, list, set): (list, _refill),
    dict: (dict, _refill),
    object: (_attributes_of, _set_attributes),
}


def content_of(value: object) -> tuple[Method, Method]:
    """Returns how to read and to set the content of an object."""
    return next(how for kind, how in _CONTENTS.items() if isinstance(value, kind))


def _put(owner: object, name: str, kind: str, to: object) -> None:
    """Restores an attribute, in place if it may change in place: others may have the object."""
    value = vars(owner).get(name)
    if kind or (isinstance(to, (list, set, dict)) and type(value) is type(to)):
        content_of(value)[1](value, to)
    else:
        setattr(owner, name, to)


class CallbackStates:
    """The attributes that callbacks have changed since this was made."""

    def __init__(self, callbacks: Iterable[object], saved: Iterable[object] = ()) -> None:
        """`saved`: variables, and objects with variables, that are saved elsewhere."""
        self._callbacks: dict[str, object] = {}  # by kind and number in it: "EarlyStopping 1"
        counts = collections.Counter[str]()
        for callback in callbacks:
            kind = type(callback).__name__
            counts[kind] += 1
            # A progress bar belongs to its terminal.
            if not isinstance(callback, keras.callbacks.ProgbarLogger):
                self._callbacks[f"{kind} {counts[kind]}"] = callback
        self._saved = {id(item) for item in [*saved, *self._callbacks.values()]}
        self._before = self._read()

    def _read(self) -> State:
        return {
            (name, attribute): _part_of(value, self._saved)
            for name, callback in self._callbacks.items()
            for attribute, value in vars(callback).items()
            if attribute not in _OF_KERAS and id(value) not in self._saved
        }

    def _changes(self) -> State:
        """Returns what has changed; a digest of what cannot be restored."""
        changes = {}
        for attribute, part in self._read().items():
            before = self._before.get(attribute, ("", b""))
            if part != before and part[1] != _OPEN:
                can_be_set = part[0] in ("", before[0])
                changes[attribute] = part if can_be_set else (part[0], _OPEN)
        return changes

    def collect(self) -> State:
        """Returns what has changed.

        A callback is left out if some of it cannot be restored: half may be worse than nothing.
        """
        changes = self._changes()
        lost = {name for (name, _), part in changes.items() if part[1].startswith(_OPEN)}
        return {attribute: part for attribute, part in changes.items() if attribute[0] not in lost}

    def apply(self, state: State) -> None:
        """Restores the callbacks, and leaves out the state of callbacks that are not there."""
        for (name, attribute), (kind, content) in state.items():
            if name in self._callbacks:
                try:
                    _put(
                        self._callbacks[name],
                        attribute,
                        kind,
                        unpack(content),
                    )
                except (AttributeError, LookupError, TypeError, ValueError) as error:
                    warn(
                        "%r of %s cannot be restored (%s): has it changed?", attribute, name, error
                    )

    def problems(self) -> Iterator[str]:
        """Yields why callbacks cannot be restored, and what to write."""
        for (name, attribute), (kind, content) in self._changes().items():
            if content.startswith(_OPEN):
                yield (
                    f"{attribute!r} of {name} has the state of a {kind}, which cannot be saved, "
                    "and without it, nothing of the callback is restored: keep numbers, lists and "
                    "dicts in attributes of the callback, from __init__ on"
                )
        for name, callback in self._callbacks.items():
            for path in _overwritten_files(callback):
                yield (
                    f"{name} writes {path!r} from the beginning at each start: append to it, as "
                    "CSVLogger(path, append=True) does"
                )


def _overwritten_files(callback: object) -> Iterator[str]:
    """Yields the paths of the files that a callback has opened to write from the beginning."""
    for value in vars(callback).values():
        mode = str(getattr(value, "mode", "r"))
        path = getattr(value, "name", "")
        if isinstance(value, io.IOBase) and mode[0] in "wx" and os.path.isfile(path):
            yield path


def _part_of(value: object, saved: set[int]) -> Part:
    """Returns the class of a value, "" if it is plain, and its content or digest."""
    kind = type(value).__name__
    with contextlib.suppress(Exception):
        return "", pack(value)
    with contextlib.suppress(Exception):  # whatever the value's own code raises
        return kind, pack(content_of(value)[0](value))
    written = io.BytesIO()
    reader = _Reader(written)
    reader.saved = saved
    with contextlib.suppress(Exception):  # of what cannot be copied
        reader.dump(value)
        return kind, b"%s%d" % (_OPEN, zlib.crc32(written.getvalue()))
    return kind, _OPEN


class _Reader(pickle.Pickler):
    """Reads a value for its digest; `saved` are the ids of what is saved elsewhere."""

    saved: set[int]

    def persistent_id(self, value: object) -> object:
        """Returns what an object's digest is made from; None: all that it has."""
        if id(value) in self.saved:
            return 0
        if isinstance(value, type):
            return value.__qualname__
        if isinstance(value, types.FunctionType):
            known = self.saved | {id(value)}  # a function may call itself
            return [_part_of(cell.cell_contents, known) for cell in value.__closure__ or ()]
        if isinstance(value, _WITH_VARIABLES):
            return [
                variable.numpy()
                for variable in _variables_of(value)
                if id(variable) not in self.saved
            ]
        if isinstance(value, Iterator) and not isinstance(value, io.IOBase):
            return time.monotonic_ns()  # never the same, as its state cannot be read
        return None
