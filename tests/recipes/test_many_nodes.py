"""The page "From one GPU to many nodes": its programs train."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from folders import ROOT

pytestmark = pytest.mark.tensorflow

PAGE = ROOT / "docs" / "many_nodes.md"


def test_the_blocks_after_the_first_are_one_program(tmp_path: Path) -> None:
    alone, *blocks = re.findall(r"^```python\n(.*?)^```$", PAGE.read_text(), re.M | re.S)
    (tmp_path / "alone.py").write_text(alone)
    (tmp_path / "train.py").write_text("".join(blocks))
    launcher = ["-m", "slurm_resolver", "run", "-n", "2", "--", "python"]
    for command in (["alone.py"], [*launcher, "train.py"]):
        done = subprocess.run(
            [sys.executable, *command],
            cwd=tmp_path,
            env={**os.environ, "PYTHONPATH": str(ROOT)},
            capture_output=True,
            text=True,
            timeout=300,
        )
        assert done.returncode == 0, done.stderr
    # only the first worker prints, and one worker saves for all
    assert re.findall(r"^(\d): Epoch", done.stdout, re.M) == ["0", "0"]
    assert (tmp_path / "best.keras").exists()
    assert (tmp_path / "trained.keras").exists()
