"""The commands' exact output and exit status."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any, Dict, List

import pytest
import task_variables
from folders import ROOT

import slurm_resolver
from slurm_resolver.cli import main

COMMAND = [sys.executable, "-m", "slurm_resolver"]

TASK = {**task_variables.TASK, "SLURM_DISTRIBUTION": "cyclic"}


def run(*arguments: str, **keywords: Any) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [*COMMAND, *arguments], capture_output=True, text=True, timeout=60, check=False, **keywords
    )


def test_version_and_help(capsys: pytest.CaptureFixture[str]) -> None:
    for option in ("--version", "--help"):
        with pytest.raises(SystemExit) as caught:
            main([option])
        assert caught.value.code == 0
    printed = capsys.readouterr().out
    assert printed.startswith(f"slurm-resolver {slurm_resolver.__version__}\n")
    assert "show the cluster of this Slurm step" in printed


@pytest.mark.parametrize("arguments", [[], ["fly"], ["show", "--placement", "even"]])
def test_usage_errors(arguments: List[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as caught:
        main(arguments)
    assert caught.value.code == 2
    assert capsys.readouterr().err.startswith("usage: slurm-resolver")


def test_no_command_imports_tensorflow(tmp_path: Path) -> None:
    (tmp_path / "tensorflow.py").write_text("raise SystemExit('TensorFlow was imported')")
    environ: Dict[str, str] = {**os.environ, "PYTHONPATH": str(tmp_path)}
    for arguments in (["show", "--nodelist", "n1"], ["run", "--", "true"], ["--version"]):
        done = run(*arguments, env=environ)
        assert (done.returncode, done.stderr) == (0, "")


SLOW_MODULES = "asyncio ctypes dataclasses inspect logging rich subprocess"


@pytest.mark.parametrize(
    "arguments",
    [["exec", "--format", "env"], ["show", "--jobs", "ps=1,worker=-1"], ["show", "--json"]],
)
def test_commands_that_start_in_every_task_import_little(arguments: List[str]) -> None:
    """What is named here would more than double the time that the command takes to start."""
    script = (
        "import sys; from slurm_resolver.cli import main\n"
        f"main({arguments!r})\n"
        f"print(sorted(set({SLOW_MODULES.split()!r}) & set(sys.modules)))"
    )
    done = subprocess.run(
        [sys.executable, "-S", "-c", script],  # -S: what a site's .pth files import is not ours
        env={"PATH": os.environ["PATH"], "PYTHONPATH": str(ROOT), **TASK},
        capture_output=True,
        text=True,
        check=True,
        timeout=60,
    )
    assert done.stdout.splitlines()[-1] == "[]"
