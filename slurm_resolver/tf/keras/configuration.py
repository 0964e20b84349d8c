"""Describes what a model trains with, so that the workers can compare it before `fit`.

A description is a list of entries, such as ("model.optimizer (SGD).momentum", "0.9"). It covers

    the call       its arguments, and callbacks that restore a training
    the model      its optimizer, loss and metrics, and how it runs
    its layers     their configurations and vocabularies, and the numbers that layers of the
                   program compute with

Names of layers and seeds are left out: Keras numbers layers, and all workers begin with the weights
of the first one. Code that raises an error is left out as well: what cannot be described is found
by the comparison of the weights (`weight_comparison`).
"""

from __future__ import annotations

import contextlib
import functools
import inspect
import types
import warnings
import zlib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from slurm_resolver.tf import private_names
from slurm_resolver.tf.keras.differences import Entry
from slurm_resolver.tf.keras.protocols import Model

Parts = dict[str, object]  # what a layer, function or object computes with, by name

_PLAIN = (type(None), int, float, str, bytes)
# Arguments, and keys of Keras' configurations, that may differ in workers that train alike.
_LEFT_OUT = (
    "name",
    "seed",
    "verbose",
    "module",
    "registered_name",
    "batch_shape",  # a step builds a model for its own rows
    "build_config",
    "shared_object_id",
)
_DEEPEST = 10


def describe_call(name: str, arguments: Mapping[str, Any]) -> Iterator[Entry]:
    """Yields what has to be the same in the arguments of `fit`, `evaluate` or `predict`.

    Their callbacks are a list. Those that restore a training have to restore the same.
    """
    import keras

    restored = {}
    for callback in arguments["callbacks"]:
        kind = type(callback).__name__
        if isinstance(callback, keras.callbacks.BackupAndRestore):
            state = Path(callback.backup_dir, "training_metadata.json")
            restored[kind] = (
                state.read_text()
                if state.exists()
                else f"no backup in {callback.backup_dir}, a folder that all workers have to share"
            )
        elif getattr(callback, "restores_all_workers", False):
            restored[kind] = ""
    parts: Parts = {
        key: value if isinstance(value, _PLAIN) else "given" for key, value in arguments.items()
    }
    parts["callbacks that restore a training"] = restored
    return _describe(name, parts)


def describe_model(model: Model) -> Iterator[Entry]:
    """Yields the configuration of a model's layers, optimizer, losses and metrics."""
    parts = _config(model, "get_compile_config")
    for name in ("optimizer", "loss", "run_eagerly", "steps_per_execution"):
        parts[name] = getattr(model, name, None)
    parts["layers"] = list(private_names.FLATTEN_LAYERS.of(model)())
    return _describe("model", parts)


def _describe(name: str, value: object, depth: int = 0) -> Iterator[Entry]:
    """Yields the entries of a value and of all that it consists of."""
    parts: Mapping[Any, object] = {}
    items = value if isinstance(value, (list, tuple)) else [value]
    if all(isinstance(item, _PLAIN) for item in items):
        text = repr(value)
    elif isinstance(value, (list, tuple)):
        text = f"{len(value)} items"
        parts = dict(enumerate(value))
    elif isinstance(value, dict):
        text = ", ".join(sorted(map(str, value))) or "none"
        parts = value
    elif isinstance(value, (np.ndarray, np.generic)):
        text = f"numbers {zlib.crc32(value.tobytes())}"
    else:
        text = getattr(value, "__qualname__", type(value).__name__)
        parts = _parts(value)
        name = f"{name} ({text})"
    yield Entry(name, text)
    for key in sorted(parts, key=str):
        if depth < _DEEPEST and key not in _LEFT_OUT:
            yield from _describe(f"{name}.{key}", parts[key], depth + 1)


def _parts(thing: object) -> Parts:
    """Returns what a function or an object computes with, by name."""
    import keras

    if isinstance(thing, functools.partial):
        return {"func": thing.func, "args": thing.args, "keywords": thing.keywords}
    if isinstance(thing, types.FunctionType):  # the plain values that it uses besides arguments
        with contextlib.suppress(ValueError):  # a cell that is still empty
            used = inspect.getclosurevars(thing)
            values = {**used.globals, **used.nonlocals}
            return {name: value for name, value in values.items() if isinstance(value, _PLAIN)}
    # The graph of layers is described by the layers themselves.
    if isinstance(thing, keras.Sequential) or hasattr(thing, "operations"):
        return {}
    # Those of a model may be of the worker alone, such as the time of its start.
    attributes = {} if isinstance(thing, keras.Model) else getattr(thing, "__dict__", {})
    if isinstance(thing, keras.losses.Loss):  # whose configuration lacks arguments, as of Huber
        return {name.lstrip("_"): value for name, value in attributes.items()}
    numbers = {
        name: value
        for name, value in attributes.items()
        if isinstance(value, (int, float, np.ndarray)) and not name.startswith("_")
    }
    return {**numbers, **_config(thing, "get_config")}


def _config(thing: Any, method: str) -> Parts:
    config: Parts = {}
    shows = warnings.showwarning
    # After `warnings.catch_warnings()`, Python would show each warning of the program once more.
    warnings.showwarning = lambda *_, **__: None
    try:
        config = dict(getattr(thing, method)())
        if hasattr(thing, "get_vocabulary"):  # which `adapt` has made, or a file has
            config["vocabulary"] = [str(word) for word in thing.get_vocabulary()]
        config["dtype"] = thing.dtype_policy.name  # instead of a configuration with this name
    except Exception:
        pass  # the program's own code may raise anything
    finally:
        warnings.showwarning = shows
    return config
