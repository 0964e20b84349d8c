"""What the tests on a real Slurm share."""

from __future__ import annotations

from pathlib import Path

import pytest


@pytest.fixture
def output(tmp_path: Path) -> Path:
    """The folder that tasks leave their accounts in."""
    folder = tmp_path / "output"
    folder.mkdir()
    return folder
