"""The table of Keras versions in docs/strategies.md is what two workers and one process give.

For `nox --session keras-versions`, which sets KERAS_VERSION to the version that is found first.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from importlib.metadata import version
from pathlib import Path
from typing import Any, Dict, List, Sequence, Tuple

import pytest
from folders import HELPERS, ROOT
from outcomes import flat

VERSION = os.environ.get("KERAS_VERSION", "")
pytestmark = [
    pytest.mark.tensorflow,
    pytest.mark.skipif(not VERSION, reason="nox --session keras-versions"),
]

PROGRAM = [sys.executable, "-W", "ignore", str(HELPERS / "keras_cases.py")]
WORKERS = [sys.executable, "-m", "slurm_resolver", "run", "-n", "2", "--", *PROGRAM]
CASES = ["datasets", "validation_data", "steps_per_execution", "py_dataset", "dicts"]
TABLE = ROOT / "docs" / "strategies.md"
ROW = re.compile(r"\| (3[\d., to]*) \| (equal|wrong) \| (equal|wrong) \| (\S*) *\|")


def row() -> Tuple[str, str, str]:
    """Returns what the table says of this version: its weights, its metrics, and the error."""
    minor = int(VERSION.split(".")[1])
    for versions, weights, metrics, error in ROW.findall(TABLE.read_text(encoding="utf-8")):
        bounds = [int(number) for number in re.findall(r"3\.(\d+)", versions)]
        if bounds[0] <= minor <= bounds[-1]:
            return weights, metrics, error.strip("`")
    raise AssertionError(f"{TABLE} has no row for Keras {VERSION}")


def run(
    command: List[str], folder: Path, name: str, cases: Sequence[str] = CASES
) -> Dict[str, Dict[str, Any]]:
    folder.mkdir()
    environ = {**os.environ, "TASK_OUTPUT": str(folder), "CUDA_VISIBLE_DEVICES": ""}
    done = subprocess.run(
        [*command, *cases], env=environ, capture_output=True, text=True, timeout=400, check=False
    )
    assert done.returncode == 0, done.stderr[-4000:]
    found: Dict[str, Dict[str, Any]] = json.loads((folder / name).read_text())
    return found


def test_the_table_says_what_this_version_gives(tmp_path: Path) -> None:
    assert version("keras").startswith(f"{VERSION}.")
    weights, metrics, error = row()
    alone = run([*PROGRAM, "--alone"], tmp_path / "alone", "alone")
    workers = run([*WORKERS, "--any-keras"], tmp_path / "workers", "0")
    wrong: Dict[str, List[str]] = {"weights": [], "metrics": []}
    for name, expected in alone.items():
        if "error" in expected:  # this Keras cannot do it anywhere
            continue
        found = workers[name]
        for what, kind in (("weights",) * 2, ("history", "metrics"), ("evaluate", "metrics")):
            left, right = flat(expected[what]), flat(found.get(what, []))
            close = (
                len(left) == len(right)
                and max(abs(one - other) for one, other in zip(left, right)) < 1e-5
            )
            if not close:
                wrong[kind].append(f"{name} {what} {found.get('error', '')[:200]}")
    measured = ["wrong" if wrong[kind] else "equal" for kind in ("weights", "metrics")]
    assert measured == [weights, metrics], wrong
    if error:
        (refused,) = run(WORKERS, tmp_path / "refused", "0", CASES[:1]).values()
        assert refused["error"].startswith(f"{error}: Keras {VERSION}.")
