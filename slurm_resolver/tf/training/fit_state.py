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
from typing import Any

import numpy as np
import tensorflow as tf

_COLLECTIONS: dict[str, type[Any]] = {
    kind.__name__: kind for kind in (list, tuple, set, frozenset, dict)
}
_TensorProto = type(tf.make_tensor_proto(0))
_ALONE = (bool, int, float, str, type(None))


def pack(value: Any) -> str:
    """Returns a plain value as text; raises TypeError for any other value."""
    return json.dumps(_encode(value))


def unpack(packed: str | bytes) -> Any:
    """Returns the value that `pack` was given."""
    return json.loads(packed, object_hook=_decode)


def _encode(value: Any) -> Any:
    """Returns the value in a form that JSON supports."""
    if type(value) in _ALONE:
        return value
    is_array = type(value) is np.ndarray or isinstance(value, np.generic)  # a mask would be lost
    if is_array and value.dtype.kind in "biufcV":
        proto = tf.make_tensor_proto(value.astype(value.dtype.newbyteorder("=")))
        return {"array": base64.b64encode(proto.SerializeToString()).decode()}
    name = type(value).__name__
    if _COLLECTIONS.get(name) is not type(value):
        raise TypeError(type(value))
    items = value.items() if name == "dict" else value
    return {name: [_encode(item) for item in items]}


def _decode(code: dict[str, Any]) -> Any:
    """Returns the value of an object, given those in it."""
    ((kind, held),) = code.items()
    if kind == "array":
        proto = _TensorProto.FromString(base64.b64decode(held))
        return tf.make_ndarray(proto)[()]  # an array without dimensions becomes a scalar
    return _COLLECTIONS[kind](held)
