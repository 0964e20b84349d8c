"""What the callbacks of a training have changed in themselves, for a checkpoint.

Only plain values are kept, as JSON and the bytes of arrays, so that reading a checkpoint runs no
code: None, numbers, strings, NumPy arrays, the names of Keras' own functions, and lists, tuples,
sets and dicts of these.
"""

from __future__ import annotations

import json
import sys
import zlib
from typing import Any, Dict, Iterable, Iterator, List, Tuple

import numpy as np
import tensorflow as tf

from slurm_resolver.errors import ResumeError

_SEQUENCES = {kind.__name__: kind for kind in (list, tuple, set, frozenset)}
_OF_KERAS = ("model", "_model", "params")
_ALONE = (bool, int, float, str, type(None))


class CallbackStates:
    """The attributes that callbacks have changed since this was made."""

    def __init__(self, callbacks: Iterable[Any]) -> None:
        self._callbacks = dict(_named(callbacks))
        # The values themselves as well: an id counts only as long as its object is there.
        self._before = {
            name: {key: (_fingerprint(value), value) for key, value in _attributes(callback)}
            for name, callback in self._callbacks.items()
        }

    def collect(self) -> Dict[str, Dict[str, Any]]:
        """Returns by callback the attributes that have changed, and their values.

        A callback is left out where one of them is not plain, as half of a state may be worse than
        none. Keras 3's EarlyStopping, say, changes the sign of `min_delta` when it sets the
        function by which it compares.
        """
        states = {}
        for name, callback in self._callbacks.items():
            changed, plain = {}, True
            for key, value in _attributes(callback):
                before, _ = self._before[name].get(key, (None, None))
                now = _fingerprint(value)
                if now != before:
                    changed[key] = value
                    plain = plain and now[0] != "object"
            if changed and plain:
                states[name] = changed
        return states

    def apply(self, states: Dict[str, Dict[str, Any]]) -> None:
        """Sets the attributes of the callbacks that are there."""
        for name, state in states.items():
            if name in self._callbacks:
                vars(self._callbacks[name]).update(state)


def pack(value: Any) -> bytes:
    """Returns a plain value as bytes.

    Raises:
        TypeError: for one that is not plain.
    """
    arrays: List[np.ndarray] = []
    header = json.dumps(_encode(value, arrays)).encode()
    parts = [len(header).to_bytes(8, "little"), header]
    return b"".join([*parts, *(array.tobytes() for array in arrays)])


def unpack(packed: bytes) -> Any:
    """Returns the value that `pack` was given."""
    end = 8 + int.from_bytes(packed[:8], "little")
    return _decode(json.loads(packed[8:end]), memoryview(packed)[end:])


def _named(callbacks: Iterable[Any]) -> Iterator[Tuple[str, Any]]:
    """Yields each callback with its class' name and its number among those of that name."""
    seen: Dict[str, int] = {}
    for callback in callbacks:
        name = type(callback).__name__
        seen[name] = seen.get(name, 0) + 1
        yield f"{name} {seen[name]}", callback


def _attributes(callback: Any) -> Iterator[Tuple[str, Any]]:
    """Yields what may be state: not what Keras sets in every callback."""
    for key, value in getattr(callback, "__dict__", {}).items():
        if key not in _OF_KERAS:
            yield key, value


def _fingerprint(value: Any) -> Tuple[Any, ...]:
    """Returns what differs for another value, and of one that is not plain for another object."""
    arrays: List[np.ndarray] = []
    try:
        text = json.dumps(_encode(value, arrays))
    except (TypeError, RecursionError):
        return "object", id(value)
    return "plain", text, [zlib.crc32(array.tobytes()) for array in arrays]


def _encode(value: Any, arrays: List[np.ndarray]) -> Any:
    """Returns what JSON can hold; arrays are collected, and named by their place in the bytes."""
    if type(value) in _ALONE:
        return value
    if isinstance(value, (np.ndarray, np.generic)):
        array = np.atleast_1d(value)
        if array.dtype.hasobject or array.dtype.names:
            raise TypeError(array.dtype)
        offset = sum(other.nbytes for other in arrays)
        arrays.append(array)
        dtype = array.dtype.name if array.dtype.kind == "V" else array.dtype.str
        return {"array": [dtype, list(np.shape(value)), offset, isinstance(value, np.generic)]}
    if type(value) is dict:
        pairs = [[_encode(key, arrays), _encode(item, arrays)] for key, item in value.items()]
        return {"dict": pairs}
    name = type(value).__name__
    if _SEQUENCES.get(name) is type(value):
        return {name: [_encode(item, arrays) for item in value]}
    function = [getattr(value, "__module__", None), getattr(value, "__name__", None)]
    if _function(*function) is value:
        return {"function": function}
    raise TypeError(type(value))


def _function(module: Any, name: Any) -> Any:
    """Returns the function of this name in a module of Keras; None where there is none."""
    if not isinstance(module, str) or module.partition(".")[0] != "keras":
        return None
    return getattr(sys.modules.get(module), str(name), None)


def _decode(code: Any, data: memoryview) -> Any:
    if not isinstance(code, dict):
        return code
    ((kind, held),) = code.items()
    if kind == "array":
        name, shape, offset, scalar = held
        # NumPy alone does not know bfloat16 and the like by name.
        dtype = np.dtype(name) if name[0] in "<>|=" else tf.as_dtype(name).as_numpy_dtype
        array = np.frombuffer(data, dtype, int(np.prod(shape)), offset).reshape(shape).copy()
        return array[()] if scalar else array
    if kind == "function":
        found = _function(*held)
        if found is None:
            raise ResumeError(
                f"the checkpoint was saved with another Keras, whose {'.'.join(held)} is not here: "
                "install that version again, or begin anew in another folder."
            )
        return found
    if kind == "dict":
        return {_decode(key, data): _decode(item, data) for key, item in held}
    return _SEQUENCES[kind](_decode(item, data) for item in held)
