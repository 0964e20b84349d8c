"""Describes what a model trains with, and compares it in all workers before `fit`.

A description is a list of entries, each a name and a value as text, such as ("optimizer.momentum",
"0.9"). It covers

    the call       how much data there is, steps and epochs, callbacks that restore a training
    the model      its optimizer, loss and metrics, and how it runs
    its layers     their configurations, and the numbers that layers of the program compute with

Names of layers and seeds are left out: Keras numbers layers, and all workers begin with the weights
of the first one. Code that raises an error is left out as well: what cannot be described is found
by the comparison of the weights (`weight_comparison`).
"""

from __future__ import annotations

import contextlib
import functools
import inspect
import itertools
import json
import types
import warnings
import zlib
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from slurm_resolver.errors import FitError
from slurm_resolver.tf import private_names
from slurm_resolver.tf.exchange import Workers

Entry = tuple[str, str]
Parts = dict[str, Any]  # what a layer, function or object computes with, by name

_PLAIN = (type(None), int, float, str, bytes)
# Keys of Keras' configurations that may differ in workers that train alike.
_LEFT_OUT = (
    "name",
    "seed",
    "module",
    "registered_name",
    "build_config",
    "shared_object_id",
)
_WEIGHTS = ("sample_weight", "class_weight")
_DEEPEST = 8
_LONGEST = 1000  # lists such as vocabularies are one entry
_SHOWN = 200  # characters of a name or a value


def describe_call(arguments: Mapping[str, Any]) -> Iterator[Entry]:
    """Yields what has to be the same in the arguments of `fit`, `evaluate` or `predict`.

    Their callbacks are a list.
    """
    import keras

    steps = arguments.get("steps_per_epoch", arguments.get("steps"))
    yield "the data", _describe_data(arguments["x"], steps)
    validation = arguments.get("validation_data")
    yield "validation_data", _describe_data(validation, arguments.get("validation_steps"))
    for name, value in arguments.items():
        if name in _WEIGHTS:  # of which Keras makes a part of the batches
            yield name, _describe_data(value, None)
        elif isinstance(value, _PLAIN) and name != "verbose":
            yield name, repr(value)
    restoring = sorted(
        type(callback).__name__
        for callback in arguments["callbacks"]
        if isinstance(callback, keras.callbacks.BackupAndRestore)
        or getattr(callback, "restores_all_workers", False)
    )
    yield "callbacks that restore a training", ", ".join(restoring) or "none"


def _describe_data(value: Any, steps: Any) -> str:
    """Describes how much data there is, as far as it is known."""
    if isinstance(value, tf.data.Dataset):
        sharding = value.options().experimental_distribute.auto_shard_policy
        cardinality = int(value.cardinality())
        # With OFF, each worker has its own data, and takes the same number of steps.
        of_its_own = steps and sharding == tf.data.experimental.AutoShardPolicy.OFF
        if of_its_own or cardinality == tf.data.UNKNOWN_CARDINALITY:
            return "unknown"
        return "endless" if cardinality < 0 else f"{cardinality} batches"
    part = next(iter(tf.nest.flatten(value)), None)
    if isinstance(part, _PLAIN):
        return str(part)
    if getattr(part, "shape", None):
        return f"{part.shape[0]} rows"
    return f"{part.num_batches} batches" if hasattr(part, "num_batches") else "unknown"


def describe_model(model: Any) -> list[Entry]:
    """Returns the configuration of a model's layers, optimizer, losses and metrics."""
    entries: list[Entry] = []
    for name in ("optimizer", "loss", "run_eagerly", "steps_per_execution"):
        entries += _describe(name, getattr(model, name, None))
    with contextlib.suppress(Exception):  # not everything that is compiled can be described
        compiled = model.get_compile_config()
        for name in ("metrics", "weighted_metrics", "loss_weights"):
            # unlike an object's text, its type's name contains no address
            text = json.dumps(compiled.get(name), default=lambda value: type(value).__name__)
            entries.append((name, text))
    for number, layer in enumerate(private_names.FLATTEN_LAYERS.of(model)()):
        entries += _describe(f"layer {number} ({type(layer).__name__})", _own(layer))
    return entries


def compare_entries(workers: Workers, call: str, entries: Sequence[Entry]) -> None:
    """Raises FitError in every worker with the first entry that differs from worker to worker."""
    purpose = f"compares what {call} trains with"
    if len(set(workers.exchange(purpose, _digest_of(entries)))) == 1:
        return
    # One of the models may have fewer entries.
    for entry in itertools.chain(entries, itertools.repeat(("", "nothing"))):
        name, value = entry
        own = [_digest_of(entry), name[:_SHOWN], value[:_SHOWN]]
        digests, names, values = zip(*workers.exchange(purpose, own))
        if len(set(digests)) == 1:
            continue
        what = names[0]
        if len(set(names)) > 1:  # the models have other parts
            what = "its model"
            values = tuple(map(" ".join, zip(names, values)))
        raise FitError(
            f"{call} differs from worker to worker, in {what}: {workers.holders(values)}. "
            "Expected the same program in every worker, with the same data, of which each takes "
            "its share. Data that differs between workers (AutoShardPolicy.OFF) needs "
            "steps_per_epoch."
        )


def _digest_of(described: Any) -> int:
    return zlib.crc32(repr(described).encode())


def _own(layer: Any) -> Parts:
    """Returns what describes a layer without the layers in it.

    That is its configuration, and the numbers and arrays that a layer of the program's own computes
    with. Those of a model may be of the worker alone, such as the time of its start.
    """
    import keras

    # The graph of layers is described by the layers themselves.
    if isinstance(layer, keras.Sequential) or hasattr(layer, "operations"):
        return {}
    found = _config(layer)
    if "dtype" in found:
        found["dtype"] = layer.dtype_policy.name  # instead of a configuration with this name
    if "batch_shape" in found:
        found["batch_shape"] = found["batch_shape"][1:]  # a step builds it for its own rows
    if isinstance(layer, keras.Model):
        return found
    for name, value in vars(layer).items():
        if not name.startswith("_") and isinstance(value, (int, float, np.ndarray)):
            found.setdefault(name, value)
    return found


def _config(thing: Any) -> Parts:
    # The program's own code may raise anything.
    with warnings.catch_warnings(), contextlib.suppress(Exception):
        warnings.simplefilter("ignore")
        return dict(thing.get_config())
    return {}


def _describe(name: str, value: Any, depth: int = 0) -> Iterator[Entry]:
    """Yields the entries of a value and of all that it consists of."""
    if depth > _DEEPEST:
        return
    if isinstance(value, _PLAIN):
        yield name, repr(value)
    elif isinstance(value, dict):
        for key in sorted(value, key=str):
            if key not in _LEFT_OUT:
                yield from _describe(f"{name}.{key}", value[key], depth + 1)
    elif isinstance(value, (list, tuple)):
        if len(value) > _LONGEST:
            yield name, f"{len(value)} items {_digest_of(value):08x}"
            return
        for place, item in enumerate(value):
            yield from _describe(f"{name}[{place}]", item, depth + 1)
    elif isinstance(value, (np.ndarray, np.generic)):
        yield name, f"{value.dtype}{value.shape} {zlib.crc32(value.tobytes()):08x}"
    else:
        yield name, getattr(value, "__qualname__", type(value).__name__)
        yield from _describe(name, _parts(value), depth + 1)


def _parts(thing: Any) -> Parts:
    """Returns what a function or an object computes with, by name."""
    import keras

    if isinstance(thing, functools.partial):
        return {"func": thing.func, "args": thing.args, **thing.keywords}
    if isinstance(thing, types.FunctionType):  # the plain values that it uses besides arguments
        with contextlib.suppress(TypeError, ValueError):  # such as a cell that is still empty
            found = inspect.getclosurevars(thing)
            used = {**found.globals, **found.nonlocals}
            return {name: value for name, value in used.items() if isinstance(value, _PLAIN)}
    if isinstance(thing, keras.losses.Loss):  # whose configuration lacks arguments, as of Huber
        kept = (*_PLAIN, dict, list, tuple, types.FunctionType)
        return {
            name.lstrip("_"): value
            for name, value in vars(thing).items()
            if isinstance(value, kept)
        }
    return _config(thing)
