"""Calls a function outside of the graph that is being traced."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import Any, Callable


def call_outside(function: Callable[[], Any]) -> Any:
    """Calls a function outside of the graph that is being traced, and of the strategy's scope.

    Only another thread is outside of both.
    """
    with ThreadPoolExecutor(max_workers=1) as thread:
        return thread.submit(function).result()
