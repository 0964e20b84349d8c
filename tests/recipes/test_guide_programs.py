"""Runs the programs in the guides."""

from __future__ import annotations

import os
import re
import sys
from pathlib import Path

import pytest
from folders import ROOT
from local_run import COMMAND, captured, in_step
from page_blocks import texts_of

TWO_TASKS = in_step("-n 2")


def program_of(page: str, start: str = "") -> str:
    """Returns the Python blocks of a guide that start with this text, joined."""
    blocks = texts_of(ROOT / "docs" / page, "python")
    return "".join(block for block in blocks if block.startswith(start))


def run(folder: Path, *command: str, **variables: str) -> str:
    return captured(
        command,
        status=0,
        cwd=folder,
        env={
            **os.environ,
            "PYTHONPATH": str(ROOT),
            **variables,
        },
    ).stdout


@pytest.mark.tensorflow
def test_first_block_of_readme(tmp_path: Path) -> None:
    """It runs as it stands, and the index shows the same program."""
    program = program_of("../README.md")
    assert program == program_of("index.md")
    (tmp_path / "train.py").write_text(program)
    assert "loss" in run(tmp_path, *TWO_TASKS, "python", "train.py")


@pytest.mark.tensorflow
def test_many_nodes(tmp_path: Path) -> None:
    """The first block of the page is one program; the other blocks form a second one."""
    alone, first_change, others = program_of("many_nodes.md").partition(
        "import keras\nimport numpy as np\nimport tensorflow"
    )
    (tmp_path / "alone.py").write_text(alone)
    (tmp_path / "train.py").write_text(first_change + others)
    assert "fit(" in alone
    run(tmp_path, sys.executable, "alone.py")
    printed = run(tmp_path, *TWO_TASKS, "python", "train.py")
    # Only the first worker prints, and one worker saves for all.
    assert re.findall(r"^(\d): Epoch", printed, re.M) == ["0", "0"]
    assert (tmp_path / "best.keras").exists()
    assert (tmp_path / "trained.keras").exists()


@pytest.mark.nightly
@pytest.mark.tensorflow
def test_data(tmp_path: Path) -> None:
    """Both workers say why the second dataset of the page is not divided; the first one is."""
    (tmp_path / "train.py").write_text(program_of("data.md"))
    printed = run(tmp_path, *TWO_TASKS, "sh", "-c", "python train.py 2>&1")
    assert printed.count("each worker produces all rows") == 2


@pytest.mark.nightly
def test_keras_with_jax(tmp_path: Path) -> None:
    pytest.importorskip("jax")
    (tmp_path / "train.py").write_text(program_of("unchanged_programs.md", "import jax\n"))
    losses = dict(
        re.findall(
            r"^(\d): (\[.*\])$",
            run(
                tmp_path,
                *TWO_TASKS,
                *COMMAND,
                "exec",
                "--env=keras-distribution",
                "--",
                sys.executable,
                "train.py",
                KERAS_BACKEND="jax",
            ),
            re.M,
        )
    )
    assert set(losses) == {"0", "1"}
    assert len(set(losses.values())) == 1
