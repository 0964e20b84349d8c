"""Looks up expected results that differ between versions of Slurm."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TypeVar

from slurm_installation import Installation

T = TypeVar("T")


def expected(table: Mapping[str, T], installation: Installation) -> T:
    """Returns the entry of the newest version that is not newer than this one."""
    return table[
        max(
            [version for version in table if Installation(version).number <= installation.number],
            key=lambda version: Installation(version).number,
        )
    ]
