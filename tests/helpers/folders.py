"""The folders of the checkout."""

from __future__ import annotations

import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
EXAMPLES = ROOT / "examples"
TESTS = ROOT / "tests"
DATA = TESTS / "data"
HELPERS = TESTS / "helpers"


def helper(name: str, *options: str) -> list[str]:
    """Returns the command that runs a program of this folder, with options of Python."""
    return [sys.executable, *options, str(HELPERS / name)]


def quiet_helper(name: str) -> list[str]:
    """Returns the command that runs a program, without what TensorFlow and Python only remark."""
    return ["env", "TF_CPP_MIN_LOG_LEVEL=2", *helper(name, "-W", "ignore")]
