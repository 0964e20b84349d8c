"""Batch files as `slurm-resolver sbatch` prints them."""

from __future__ import annotations

import shlex

from captured import Captured

from slurm_resolver.cli import main


def printed(options: str, command: str, capsys: Captured) -> str:
    """Returns the batch file that the command prints for these options and this program."""
    assert main(["sbatch", *shlex.split(options), "--", *shlex.split(command)]) == 0
    return capsys.readouterr().out
