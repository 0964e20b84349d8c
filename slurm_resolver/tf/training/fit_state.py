"""The state of Keras' `fit` in a checkpoint, besides variables: plain values, as JSON.

Plain values are None, numbers, strings, NumPy arrays, and lists, tuples, sets and dicts of them.
Reading them runs no code. What JSON cannot express is an object with one key, the type::

    (1, "a")               {"tuple": [1, "a"]}
    {1: None}              {"dict": [[1, null]]}
    np.zeros(3)            {"array": the base64 of TensorFlow's TensorProto}
"""

from __future__ import annotations

import base64
import json
from collections import Counter
from collections.abc import Iterable
from typing import Any

import numpy as np
import tensorflow as tf

from slurm_resolver.tf import private_names

States = dict[str, dict[str, str]]  # by callback, and by attribute the packed value
Snapshot = dict[str, Any]  # of a callback, by attribute

_SEQUENCES = {kind.__name__: kind for kind in (list, tuple, set, frozenset)}
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
    if type(value) is dict:
        return {"dict": [[_encode(key), _encode(item)] for key, item in value.items()]}
    if _SEQUENCES.get(name) is type(value):
        return {name: [_encode(item) for item in value]}
    raise TypeError(type(value))


def _decode(code: Any) -> Any:
    if not isinstance(code, dict):
        return code
    ((kind, held),) = code.items()
    if kind == "array":
        proto = private_names.TENSOR_PROTO.get().FromString(base64.b64decode(held))
        return tf.make_ndarray(proto)[()]  # an array without dimensions becomes a scalar
    if kind == "dict":
        return {_decode(key): _decode(item) for key, item in held}
    return _SEQUENCES[kind](_decode(item) for item in held)


class CallbackStates:
    """The attributes that callbacks have changed since this was made."""

    def __init__(self, callbacks: Iterable[Any]) -> None:
        # By name: a callback, its snapshot, and its attributes. These must stay alive, as no other
        # object may get the identity of one of them.
        self._callbacks: dict[str, tuple[Any, Snapshot, Snapshot]] = {}
        counts = Counter[str]()
        for callback in callbacks:
            kind = type(callback).__name__
            counts[kind] += 1
            name = f"{kind} {counts[kind]}"
            self._callbacks[name] = (callback, _snapshot(callback), dict(vars(callback)))

    def collect(self) -> States:
        """Returns by callback the attributes that have changed, with their values packed.

        A callback is left out if one of them is not plain: half of a state may be worse than none.
        """
        states = {}
        for name, (callback, before, _) in self._callbacks.items():
            changed = {
                key: value for key, value in _snapshot(callback).items() if before.get(key) != value
            }
            if changed and all(isinstance(value, str) for value in changed.values()):
                states[name] = changed
        return states

    def apply(self, states: States) -> None:
        """Sets the attributes of those callbacks that exist."""
        for name, (callback, _, _) in self._callbacks.items():
            for key, value in states.get(name, {}).items():
                vars(callback)[key] = unpack(value)


def _snapshot(callback: Any) -> Snapshot:
    """Returns for each attribute the packed value, or an object's identity if it is not plain."""
    found: Snapshot = {}
    for key, value in vars(callback).items():
        if key in _OF_KERAS:
            continue
        try:
            found[key] = pack(value)
        except (TypeError, RecursionError):
            found[key] = id(value)
    return found
