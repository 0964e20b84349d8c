"""Runs the commands of the package, and other programs, as a user does."""

from __future__ import annotations

import shlex
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from captured import Captured
from kinds import Completed, Strings

from slurm_resolver.cli import main

COMMAND = [
    sys.executable,
    "-m",
    "slurm_resolver",
]


def captured(
    command: Sequence[str | Path],
    status: int | None = None,
    timeout: float = 600,
    **how: Any,
) -> Completed:
    """Runs a program, and captures its output as text. A given status must be its exit status."""
    done = subprocess.run(
        command,
        capture_output=True,
        text=True,
        timeout=timeout,
        **how,
    )
    assert status in (None, done.returncode), f"{command}\n{done.stdout}\n{done.stderr}"
    return done


def piped(command: Sequence[str], **how: Any) -> Any:
    """Starts a program, whose output and errors the test reads as text while it runs."""
    pipe = subprocess.PIPE
    return subprocess.Popen(command, stdout=pipe, stderr=pipe, text=True, **how)


def in_step(options: str, *command: str) -> Strings:
    """Returns the command that runs another one in a local step, with options such as "-n 2"."""
    return [*COMMAND, "run", *options.split(), "--", *command]


def run_script(options: str, script: str, **how: Any) -> Completed:
    """Runs a shell script in the tasks of a local step."""
    return captured(in_step(options, "sh", "-c", script), **how)


def exit_status(*arguments: str) -> object:
    """Runs the command in this process, which may exit in the parser, and returns its status."""
    try:
        return main(arguments)
    except SystemExit as end:
        return end.code


def refused(capsys: Captured, *arguments: str) -> str:
    """Returns the error of a command that has done nothing: its exit status is 2."""
    assert exit_status(*arguments) == 2
    output, errors = capsys.readouterr()
    assert output == ""
    return errors


def printed_batch_file(options: str, command: str, capsys: Captured) -> str:
    """Returns the batch file that `sbatch` prints for these options and this program."""
    assert main(["sbatch", *shlex.split(options), "--", *shlex.split(command)]) == 0
    return capsys.readouterr().out


def has_ended(pid: int) -> bool:
    """Returns whether a process that is not our child has ended."""
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except FileNotFoundError:
        return True
    return state == "Z"  # a container without an init never reaps it
