"""The tasks of a step, as everybody sees them."""

from __future__ import annotations

from typing import NamedTuple


class Task(NamedTuple):
    """One task: its rank, its node and local rank there, its job and index, and its address."""

    rank: int
    node: str
    local_rank: int
    job: str
    index: int  # type: ignore[assignment]  # TensorFlow's word; hides tuple.index()
    address: str
