"""Whether the step of one process is being traced, in which no strategy takes part."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator
from typing import Any

from slurm_resolver.tf.private_names import Method


class _Thread(threading.local):
    """What a thread does; each has its own."""

    traces = False


_thread = _Thread()


@contextlib.contextmanager
def as_one_process() -> Iterator[None]:
    """Lets the block run a step as one process does."""
    _thread.traces = True
    try:
        yield
    finally:
        _thread.traces = False


def is_one_process() -> bool:
    """Whether the caller is in such a block."""
    return _thread.traces


def update_once(original: Method, variable: Any, function: Method, *args: Any, **given: Any) -> Any:
    """Replaces a strategy's `extended.update`: in the step of one process, it updates one copy."""
    if not is_one_process():
        return original(variable, function, *args, **given)
    local = getattr(variable, "values", (variable,))
    values = given.get("args", args[0] if args else ())
    return function(local[0], *values, **(given.get("kwargs") or {}))
