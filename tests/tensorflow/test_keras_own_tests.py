"""Keras' own tests give in the strategy's scope on two workers what they give in one process.

For KERAS_SOURCES=installed, as Keras' wheel holds its tests, or the folder of a checkout of the
version that is installed.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any, Dict

import pytest
from folders import HELPERS, ROOT

SOURCES = os.environ.get("KERAS_SOURCES", "")
pytestmark = [
    pytest.mark.tensorflow,
    pytest.mark.skipif(not SOURCES, reason="KERAS_SOURCES=installed, or a folder"),
]

FILES = [
    "trainers/trainer_test.py",
    "trainers/epoch_iterator_test.py",
    "callbacks/backup_and_restore_test.py",
    "callbacks/early_stopping_test.py",
]
# by a test's name without its file and class: why it fails on two workers
KNOWN: Dict[str, str] = {
    "test_retracing": "the first step builds the model, which TensorFlow traces twice",
}


def outcomes(path: Path) -> Dict[str, Dict[str, Any]]:
    lines = path.read_text(encoding="utf-8").splitlines()
    return {record["test"]: record for record in map(json.loads, lines)}


def test_what_passes_alone_passes_on_two_workers(tmp_path: Path) -> None:
    output, sources = tmp_path / "workers", SOURCES
    if sources != "installed":
        sources = str(Path(ROOT, sources))
    command = [sys.executable, "-W", "ignore", str(HELPERS / "keras_lockstep.py"), sources]
    subprocess.run([*command, str(output), *FILES], timeout=1800, check=True)
    alone = outcomes(Path(f"{output}.alone"))
    workers = outcomes(output)
    passed = {test for test, record in alone.items() if record["outcome"] == "passed"}
    assert passed
    assert passed == set(workers)
    wrong = {
        test.rpartition("::")[2]: record["error"]
        for test, record in workers.items()
        if record["outcome"] != "passed"
    }
    assert {test: error for test, error in wrong.items() if test not in KNOWN} == {}
    assert sorted(KNOWN.keys() - wrong.keys()) == []
