"""Keras with JAX on several processes, as docs/unchanged_programs.md shows it."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from folders import ROOT

pytestmark = pytest.mark.nightly


def test_two_processes_train_together(tmp_path: Path) -> None:
    pytest.importorskip("jax")
    page = (ROOT / "docs" / "unchanged_programs.md").read_text(encoding="utf-8")
    (program,) = re.findall(r"^```python\n(import jax\n.*?)^```$", page, re.M | re.S)
    (tmp_path / "train.py").write_text(program)
    resolver = [sys.executable, "-m", "slurm_resolver"]
    program_of_keras = ["exec", "--env", "keras-distribution", "--", sys.executable, "train.py"]
    done = subprocess.run(
        [*resolver, "run", "-n", "2", "--", *resolver, *program_of_keras],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(ROOT), "KERAS_BACKEND": "jax"},
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr
    losses = dict(re.findall(r"^(\d): (\[.*\])$", done.stdout, re.M))
    assert set(losses) == {"0", "1"}
    assert len(set(losses.values())) == 1
