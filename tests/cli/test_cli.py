"""The commands' exact output and exit status."""

from __future__ import annotations

import importlib
import itertools
import os
import re
import shlex
import subprocess
import sys
from pathlib import Path
from typing import Any, Dict, List

import pytest
import task_variables
from folders import ROOT

import slurm_resolver
from slurm_resolver.cli import COMMANDS, build_parser, main, sbatch

COMMAND = [sys.executable, "-m", "slurm_resolver"]

TASK = {**task_variables.TASK, "SLURM_DISTRIBUTION": "cyclic"}


def run(*arguments: str, **keywords: Any) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [*COMMAND, *arguments], capture_output=True, text=True, timeout=180, check=False, **keywords
    )


def test_version_and_help(capsys: pytest.CaptureFixture[str]) -> None:
    for option in ("--version", "-V", "--help", "help"):
        with pytest.raises(SystemExit) as caught:
            main([option])
        assert caught.value.code == 0
    printed = capsys.readouterr().out
    assert printed.startswith(f"slurm-resolver {slurm_resolver.__version__}\n" * 2)
    assert printed.count("show the cluster of this Slurm step") == 2


@pytest.mark.parametrize("command", COMMANDS)
def test_help_command_is_command_help(command: str) -> None:
    printed = run("help", command)
    assert printed.returncode == 0
    assert printed.stdout == run(command, "--help").stdout
    assert printed.stdout.startswith(f"usage: slurm-resolver {command} ")


def test_the_bare_command_shows_its_help() -> None:
    bare = run()
    assert bare.stdout == run("--help").stdout
    assert (bare.returncode, bare.stderr) == (2, "")  # as nothing was done


@pytest.mark.parametrize(
    "arguments",
    [
        *([command, "--help"] for command in COMMANDS),
        ["--help"],
        ["env"],
        ["show", "--nodelist", "n[1-4]", "--jobs", "ps=1,worker=-1"],
    ],
    ids=" ".join,
)
def test_a_terminal_that_knows_ascii_only_is_no_error(arguments: List[str]) -> None:
    ascii_only = {"PYTHONIOENCODING": "ascii", "PYTHONUTF8": "0", "LC_ALL": "C"}
    done = run(*arguments, env={**os.environ, **ascii_only})
    assert "Error" not in done.stderr
    assert done.returncode == 0
    assert (done.stdout + done.stderr).isascii()


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ("shwo", ": there is no command 'shwo': did you mean show?"),
        ("fly", ": there is no command 'fly'"),
        ("--jobs", ": the following arguments are required: COMMAND"),
        ("show --nodelst=n1", " show: unknown option --nodelst: did you mean --nodelist?"),
        ("show --frobnicate", " show: unknown option --frobnicate"),
        ("show n1", " show: unexpected argument 'n1'"),
        (
            "run -n2 --open-mdoe /tmp -- true",
            " run: unknown option --open-mdoe: did you mean --open-mode?",
        ),
        ("sbatch --nodes two -- a", " sbatch: argument -N/--nodes: invalid int value: 'two'"),
        ("help shwo", " help: argument COMMAND: invalid choice: 'shwo' (choose from "),
        ("hosts expnd n1", " hosts: argument ACTION: invalid choice: 'expnd' (choose from "),
        ("show --placement sprad", " show: argument --placement: invalid choice: 'sprad' (choose "),
        ("show --once --each", " show: argument --each: not allowed with argument --once"),
    ],
)
def test_what_is_wrong_is_said_before_the_usage(words: str, said: str) -> None:
    done = run(*words.split())
    assert (done.returncode, done.stdout) == (2, "")
    first, second, third = done.stderr.splitlines()[:3]
    assert first.startswith(f"slurm-resolver{said}")
    assert ("did you mean" in first) == any(name in words for name in MISSPELT)
    assert (second, third[:22]) == ("", "usage: slurm-resolver ")


MISSPELT = ("shwo", "nodelst", "open-mdoe", "expnd", "sprad")


def test_an_example_can_be_pasted() -> None:
    """Every line of it is a command, or goes on where a backslash says so."""
    for command in COMMANDS:
        text = importlib.import_module(f"slurm_resolver.cli.{command}").EPILOG
        examples = text.partition("examples:\n")[2].partition("\n\n")[0]
        assert examples
        lines = examples.replace("\\\n", "").splitlines()
        assert [line for line in lines if not re.match(r"  \S", line)] == []
        for line in lines:
            assert f"slurm-resolver {command}" in line
            words = words_of_command(line.partition("slurm-resolver ")[2])
            assert build_parser().parse_args(words).command == command


def words_of_command(line: str) -> List[str]:
    """Those before an operator of the shell, which takes it and what follows for itself."""
    lexer = shlex.shlex(line, posix=True, punctuation_chars=True)
    lexer.whitespace_split = True
    return list(itertools.takewhile(lambda word: word[0] not in ">|&)", lexer))


def test_the_example_of_sbatch_writes_a_file(tmp_path: Path) -> None:
    (example, *_) = [line.strip() for line in sbatch.EPILOG.splitlines() if ".sbatch" in line]
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    subprocess.run(["bash", "-c", example], cwd=tmp_path, env={"PATH": path}, check=True)
    (file,) = tmp_path.iterdir()
    assert "python train.py" in file.read_text()


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
        "import sys; from slurm_resolver.cli import COMMANDS, main\n"
        f"main({arguments!r})\n"
        f"print(sorted(set({SLOW_MODULES.split()!r}) & set(sys.modules)))"
    )
    done = subprocess.run(
        [sys.executable, "-S", "-c", script],  # -S: what a site's .pth files import is not ours
        env={"PATH": os.environ["PATH"], "PYTHONPATH": str(ROOT), **TASK},
        capture_output=True,
        text=True,
        check=True,
        timeout=180,
    )
    assert done.stdout.splitlines()[-1] == "[]"
