"""The tasks of a real step come by the same secret, by each of the means."""

from __future__ import annotations

import os
import shlex
import sys
from pathlib import Path

import pytest
from folders import HELPERS
from munged import running_munged
from slurm_cluster import SlurmCluster
from slurm_resolver.rendezvous.munge import SOCKET_VARIABLE

pytestmark = pytest.mark.slurm


def test_the_tasks_of_a_step_share_the_secret(real_slurm: SlurmCluster, tmp_path: Path) -> None:
    task = shlex.join([sys.executable, str(HELPERS / "slurm_secret.py"), str(tmp_path)])
    environment = {
        "SLURM_RESOLVER_SECRET": "a value that nobody guesses",
        "SLURM_RESOLVER_SECRET_FOLDER": str(tmp_path / "keys"),
    }
    with running_munged() as munged:
        environment[SOCKET_VARIABLE] = munged.socket
        done = real_slurm.run(f"srun -n2 -w n8,n9 --label {task}", env=environment)
    said = done.stdout.splitlines()
    mine, theirs = ([line[3:] for line in said if line.startswith(who)] for who in ("0: ", "1: "))
    assert [line.split()[0] for line in mine] == ["SLURM_RESOLVER_SECRET", "munge", "file"]
    assert mine == theirs
    assert os.listdir(tmp_path / "keys") == []
