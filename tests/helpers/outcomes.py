"""Prepares the results of keras_programs for comparisons."""

from __future__ import annotations

from typing import Any


def flat(value: Any) -> list[float]:
    """Returns all numbers in nested lists and dicts, always in the same order."""
    if isinstance(value, dict):
        return [number for key in sorted(value) for number in flat(value[key])]
    if isinstance(value, list):
        return [number for item in value for number in flat(item)]
    return [value]
