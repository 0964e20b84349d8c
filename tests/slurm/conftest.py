"""Fixtures of the tests on a real Slurm."""

from __future__ import annotations

from pathlib import Path

import pytest


@pytest.fixture
def output(tmp_path: Path) -> Path:
    """The folder to which tasks write their records."""
    folder = tmp_path / "output"
    folder.mkdir()
    return folder


def pytest_itemcollected(item: pytest.Item) -> None:
    """Marks every test in this folder."""
    item.add_marker("slurm")
