"""The tasks of a real step recognize each other by each kind of secret."""

from __future__ import annotations

import json
import shlex
from pathlib import Path

from folders import helper
from kinds import Texts
from munged import running_munged
from slurm_cluster import SlurmCluster

from slurm_resolver.coordination.secret import MUNGE_SOCKET_VARIABLE

TASK = shlex.join([*helper("slurm_ready.py"), "--timeout", "5"])
SECRET = {"SLURM_RESOLVER_SECRET": "a value that nobody guesses"}


def errors(slurm: SlurmCluster, output: Path, env: Texts, before: str = "") -> list[str | None]:
    """Returns the error of each of two tasks on two nodes; None if they have met."""
    output.mkdir()
    slurm.run(
        f"srun -n2 -w n8,n9 -m cyclic bash -c {shlex.quote(f'{before}exec {TASK}')}",
        env={**env, "TASK_OUTPUT": str(output)},
        status=None,
    )
    return [json.loads((output / str(rank)).read_text()) for rank in range(2)]


def test_the_tasks_of_a_step_share_the_secret(real_slurm: SlurmCluster, tmp_path: Path) -> None:
    assert errors(real_slurm, tmp_path / "variable", SECRET) == [None, None]
    assert errors(
        real_slurm,
        tmp_path / "none",
        {MUNGE_SOCKET_VARIABLE: "/nowhere"},
    ) == [None, None]
    with running_munged() as munged:
        assert errors(
            real_slurm,
            tmp_path / "munge",
            {MUNGE_SOCKET_VARIABLE: munged.socket},
        ) == [None, None]


def test_a_task_without_the_secret_is_told_why(real_slurm: SlurmCluster, tmp_path: Path) -> None:
    first, second = errors(
        real_slurm,
        tmp_path / "unset",
        SECRET,
        "[ $SLURM_PROCID = 0 ] || unset SLURM_RESOLVER_SECRET; ",
    )
    assert "1 of 2 tasks did not reach the start" in str(first)
    assert "uses SLURM_RESOLVER_SECRET as its secret, but this task has no secret" in str(second)
