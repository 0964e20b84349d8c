"""All commands: their help, usage errors and imports."""

from __future__ import annotations

import importlib
import itertools
import os
import re
import shlex
import subprocess
import sys

import pytest
from captured import Captured
from folders import ROOT
from kinds import Strings
from local_run import COMMAND, captured, exit_status, refused
from task_variables import TASK

import slurm_resolver
from slurm_resolver.cli import COMMANDS, build_parser, main


def test_version_and_help(capsys: Captured) -> None:
    for option in ("--version", "-V", "--help"):
        assert exit_status(option) == 0
    printed = capsys.readouterr().out
    assert printed.startswith(f"slurm-resolver {slurm_resolver.__version__}\n" * 2)
    assert printed.count("show the cluster of this Slurm step") == 1
    assert main([]) == 2  # because nothing was done
    assert printed.endswith(capsys.readouterr().out)


@pytest.mark.parametrize("words", [[command, "--help"] for command in COMMANDS])
def test_a_terminal_that_knows_ascii_only_is_no_error(words: Strings) -> None:
    done = captured(
        [*COMMAND, *words],
        status=0,
        env={
            **os.environ,
            "PYTHONIOENCODING": "ascii",
            "PYTHONUTF8": "0",
            "LC_ALL": "C",
        },
    )
    assert "Error" not in done.stderr
    assert (done.stdout + done.stderr).isascii()


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ("shwo", "invalid choice: 'shwo'"),
        ("--jobs", "the following arguments are required: COMMAND"),
        ("show --nodelst=n1", "unrecognized arguments: --nodelst=n1"),
        ("show n1", "slurm-resolver show: unrecognized arguments: n1 (see slurm-resolver show"),
        ("show --node n1", "unrecognized arguments: --node"),
        ("sbatch --nodes two -- a", "argument -N/--nodes: 'two': expected a number from 1"),
        ("supervise --pause=-1 -- srun true", "argument --pause: '-1': expected seconds"),
        ("exec --wait=nan -- true", "argument --wait: 'nan': expected seconds, a number from 0"),
        ("show --placement sprad", "argument --placement: invalid choice: 'sprad'"),
        ("show --jobs ps", "argument --jobs: 'ps': expected NAME=NUMBER"),
        ("show --jobs =1", "'=1': expected NAME=NUMBER"),
        ("show --jobs ps=1_0", "'ps=1_0': expected NAME=NUMBER"),
        ("show --jobs ps=1,ps=2", "'ps=1,ps=2': expected NAME=NUMBER,…, each name once"),
        ("show --port-base 70000", "--port-base: '70000': expected a number from 1 to 65535"),
        ("status --port x", "argument --port: 'x': expected a number from 1 to 65535"),
        ("requeue 300", "argument STATUS: '300': expected a number from 0 to 255"),
    ],
)
def test_usage_errors(words: str, said: str, capsys: Captured) -> None:
    (line,) = refused(capsys, *words.split()).splitlines()
    assert said in line
    assert re.search(r" \(see slurm-resolver( \w+)? --help\)$", line)


def test_an_example_can_be_pasted() -> None:
    """Every line of an example is a command, or continues one after a backslash."""
    for command in COMMANDS:
        examples = (
            importlib.import_module(f"slurm_resolver.cli.{command}")
            .EPILOG.partition("examples:\n")[2]
            .partition("\n\n")[0]
        )
        lines = examples.replace("\\\n", "").splitlines()
        assert lines
        for line in lines:
            assert re.match(rf"  (\S.* )?slurm-resolver {command}", line)
            lexer = shlex.shlex(
                line.partition("slurm-resolver ")[2].replace("$?", "75"),
                posix=True,
                punctuation_chars=True,
            )
            lexer.whitespace_split = True
            assert (
                build_parser()
                .parse_args(list(itertools.takewhile(lambda word: word[0] not in ">|&)", lexer)))
                .subcommand
                == command
            )


@pytest.mark.parametrize(
    ("words", "status"),
    [
        (["run", "-n2", "--", "sh", "-c", "seq 5000; exit 3"], 3),
        (["run", "-n2", "--", "sh", "-c", "seq 5000 >&2; exit 3"], 3),
        (["requeue", "7"], 2),
        (["exec", "--", "sh", "-c", "exit 4"], 4),
        (["explain", str(ROOT / "tests" / "data" / "logs" / "cancelled.log")], 2),
    ],
)
def test_output_that_nobody_reads(words: Strings, status: int) -> None:
    """Nothing is said of it. Launchers and requeue keep their exit status."""
    reader, writer = os.pipe()
    os.close(reader)
    with open(writer, "wb") as broken:
        done = subprocess.run(
            [*COMMAND, *words],
            stdout=broken,
            stderr=subprocess.PIPE,
            text=True,
        )
    assert done.returncode == status
    assert "rror" not in done.stderr


def test_output_that_cannot_be_written_is_reported() -> None:
    for words, status, said in (
        (["sbatch", "--", "train"], 2, "slurm-resolver: cannot write the output: No space left"),
        (
            ["run", "-n2", "--", "sh", "-c", "echo a"],
            0,
            "slurm-resolver run: cannot write the output of the tasks: No space left",
        ),
    ):
        with open("/dev/full", "wb") as full:
            done = subprocess.run(
                [*COMMAND, *words], stdout=full, stderr=subprocess.PIPE, text=True
            )
        (line,) = done.stderr.splitlines()
        assert line.startswith(said)
        assert done.returncode == status


def test_shtab_completes_them() -> None:
    pytest.importorskip("shtab")
    script = subprocess.check_output(
        [sys.executable, "-m", "shtab", "--shell", "bash", "slurm_resolver.cli.build_parser"],
        text=True,
    )
    for name in COMMANDS:
        assert name in script
    subprocess.run(
        ["bash", "-n"],
        input=script,
        text=True,
        check=True,
    )


SLOW_MODULES = "asyncio ctypes logging subprocess"


@pytest.mark.parametrize(
    "arguments",
    [["exec", "--", "true"], ["show", "--jobs", "ps=1,worker=-1"], ["show", "--json"]],
)
def test_commands_that_start_in_every_task_import_little(arguments: Strings) -> None:
    """SLOW_MODULES would double the time that the command needs to start."""
    done = captured(
        [
            sys.executable,
            "-S",  # ignores the imports of a site's .pth files
            "-c",
            (
                "import os, sys; from slurm_resolver.cli import main\n"
                "def report(*_):\n"
                f"    print(sorted(set({SLOW_MODULES.split()!r}) & set(sys.modules)), flush=True)\n"
                "    os._exit(0)\n"
                "os.execvpe = report\n"
                f"main({arguments!r})\n"
                "report()"
            ),
        ],
        env={
            "PATH": os.environ["PATH"],
            "PYTHONPATH": str(ROOT),
            **TASK,
        },
        check=True,
    )
    assert done.stdout.splitlines()[-1] == "[]"
