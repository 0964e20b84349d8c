"""The state of Keras' `fit` in a checkpoint, besides variables: plain values, as JSON.

Plain values are None, numbers, strings, NumPy arrays, and lists, tuples, sets and dicts of them.
Reading them runs no code. What JSON cannot express is an object with one key, the type::

    (1, "a")               {"tuple": [1, "a"]}
    {1: None}              {"dict": [{"tuple": [1, null]}]}
    np.zeros(3)            {"array": the base64 of TensorFlow's TensorProto}
"""

from __future__ import annotations

import base64
import json
from collections import Counter
from collections.abc import Iterable
from typing import Any, Callable

import numpy as np
import tensorflow as tf

from slurm_resolver.tf import private_names

States = dict[str, dict[str, str]]  # by callback, and by attribute the packed value
Snapshot = dict[str, Any]  # of a callback, by attribute

_COLLECTIONS: dict[str, Callable[[Iterable[Any]], Any]] = {
    kind.__name__: kind for kind in (list, tuple, set, frozenset, dict)
}
_ALONE = (bool, int, float, str, type(None))
# Keras sets the first two in every callback. It derives the others, which belong together, from
# a callback's arguments when the callback first compares; EarlyStopping negates `min_delta` then.
_OF_KERAS = (
    "model",
    "params",
    "monitor_op",
    "min_delta",
)


def pack(value: Any) -> str:
    """Returns a plain value as text; raises TypeError for any other value."""
    return json.dumps(_encode(value))


def unpack(packed: str | bytes) -> Any:
    """Returns the value that `pack` was given."""
    return _decode(json.loads(packed))


def _encode(value: Any) -> Any:
    """Returns the value in a form that JSON supports."""
    if type(value) in _ALONE:
        return value
    if isinstance(value, (np.ndarray, np.generic)) and value.dtype.kind in "biufcV":
        proto = tf.make_tensor_proto(value)
        return {"array": base64.b64encode(proto.SerializeToString()).decode()}
    name = type(value).__name__
    if _COLLECTIONS.get(name) is not type(value):
        raise TypeError(type(value))
    items = value.items() if name == "dict" else value
    return {name: [_encode(item) for item in items]}


def _decode(code: Any) -> Any:
    if not isinstance(code, dict):
        return code
    ((kind, held),) = code.items()
    if kind == "array":
        proto = private_names.TENSOR_PROTO.get().FromString(base64.b64decode(held))
        return tf.make_ndarray(proto)[()]  # an array without dimensions becomes a scalar
    return _COLLECTIONS[kind](map(_decode, held))


class CallbackStates:
    """The attributes that callbacks have changed since this was made."""

    def __init__(self, callbacks: Iterable[Any]) -> None:
        self._callbacks: dict[str, Any] = {}
        counts = Counter[str]()
        for callback in callbacks:
            kind = type(callback).__name__
            counts[kind] += 1
            self._callbacks[f"{kind} {counts[kind]}"] = callback
        self._before = {name: _snapshot(one) for name, one in self._callbacks.items()}

    def collect(self) -> States:
        """Returns by callback the attributes that have changed, with their values packed.

        A callback is left out if one of them is not plain: half of a state may be worse than none.
        """
        states = {}
        for name, callback in self._callbacks.items():
            before = self._before[name]
            changed = {
                key: value for key, value in _snapshot(callback).items() if before.get(key) != value
            }
            if changed and all(isinstance(value, str) for value in changed.values()):
                states[name] = changed
        return states

    def apply(self, states: States) -> None:
        """Sets the attributes of those callbacks that exist."""
        for name, callback in self._callbacks.items():
            for key, value in states.get(name, {}).items():
                vars(callback)[key] = unpack(value)


def _snapshot(callback: Any) -> Snapshot:
    """Returns for each attribute the packed value, or an object and its identity if not plain.

    The object must stay alive, as no other one may get its identity.
    """
    found: Snapshot = {}
    for key, value in vars(callback).items():
        if key in _OF_KERAS:
            continue
        try:
            found[key] = pack(value)
        except (TypeError, RecursionError):
            found[key] = (id(value), value)
    return found
