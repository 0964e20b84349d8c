"""Every launcher in every place: srun gives the right cluster, others an error that names it."""

from __future__ import annotations

import json
import shlex
import shutil
import sys
from pathlib import Path
from typing import Dict, List

import pytest
from folders import HELPERS
from slurm_cluster import SlurmCluster, SlurmUnavailable, slurm_or_skip

pytestmark = pytest.mark.slurm

TASK = shlex.join([sys.executable, str(HELPERS / "slurm_launched.py")])
SSH = HELPERS / "slurm_ssh.sh"  # as ssh to a node of the tests' cluster: no variable goes along
OPEN_MPI = f"mpirun.openmpi --mca plm_rsh_agent {SSH} -np 4"
HYDRA = "mpirun.mpich -np 4"
HYDRA_SSH = f"-launcher ssh -launcher-exec {SSH}"

RIGHT = "a right cluster of four"
NO_STEP = "srun -n 4 python your_script.py"
MPIRUN = "Start the program with srun, without mpirun"
ALONE = "trains alone"


@pytest.fixture(autouse=True)
def _mpirun() -> None:
    missing = [name for name in ("mpirun.openmpi", "mpirun.mpich") if not shutil.which(name)]
    if missing:
        slurm_or_skip(SlurmUnavailable(f"not here: {', '.join(missing)}; `make slurm` gets them"))


def write_script(cells: Dict[str, str], folder: Path) -> str:
    """A script of the launchers' commands; each leaves its tasks' accounts in a folder."""
    lines = ["#!/bin/bash", "export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1"]
    for number, command in enumerate(cells):
        command = command.replace("TASK", f"{TASK} {folder}/{number}")
        lines.append(f"{command} >{folder}/{number}.log 2>&1")
    path = folder / "cells.sh"
    path.write_text("\n".join([*lines, "exit 0", ""]))
    path.chmod(0o755)
    return str(path)


def judge(folder: Path, number: int, result: str, hosts: Dict[str, int]) -> str:
    """What is wrong with this cell of the table; '' for nothing."""
    log = (folder / f"{number}.log").read_text()
    accounts = [json.loads(path.read_text()) for path in (folder / str(number)).glob("*")]
    if result != RIGHT:
        told = [one["error"] or log for one in accounts]
        return "" if told and all(result in text for text in told) else f"{told}\n{log}"
    found = [one["host"] for one in accounts]
    if {host: found.count(host) for host in found} != hosts:
        return f"accounts of {found}, expected {hosts}\n{log}"
    ranks: List[int] = []
    for one in accounts:
        if one["error"] is not None:
            return str(one["error"])
        tasks, rank = one["cluster"]["tasks"], one["cluster"]["self"]["rank"]
        ranks.append(rank)
        if tasks != accounts[0]["cluster"]["tasks"] or tasks[rank]["node"] != one["host"]:
            return f"wrong: rank {rank} on {one['host']} has {tasks}"
    return "" if sorted(ranks) == [0, 1, 2, 3] else f"ranks {ranks}"


def assert_cells(cells: Dict[str, str], folder: Path, hosts: Dict[str, int]) -> None:
    judged = {
        command: judge(folder, number, result, hosts)
        for number, (command, result) in enumerate(cells.items())
    }
    assert not {command: problem for command, problem in judged.items() if problem}


OPTIONS = "-w n8,n9 -N2 --ntasks-per-node=2"
HOSTS = {"n8": 2, "n9": 2}


@pytest.mark.parametrize("place", ["salloc", "sbatch --wait --output=log"])
def test_inside_an_allocation(real_slurm: SlurmCluster, tmp_path: Path, place: str) -> None:
    cells = {
        "srun TASK": RIGHT,
        f"{OPEN_MPI} TASK": MPIRUN,
        f"{HYDRA} TASK": MPIRUN,
        f"{HYDRA} {HYDRA_SSH} TASK": MPIRUN,
        f"{OPEN_MPI} unshare --pid --fork --mount-proc TASK": MPIRUN,  # as in a container
        f"{OPEN_MPI} env -i TASK": "not by srun",
        "TASK": NO_STEP,
    }
    script = write_script(cells, tmp_path)
    real_slurm.run(f"{place} {OPTIONS} {script}", cwd=tmp_path)
    assert_cells(cells, tmp_path, HOSTS)


def test_on_a_login_node(real_slurm: SlurmCluster, tmp_path: Path) -> None:
    cells = {
        f"srun {OPTIONS} TASK": RIGHT,
        f"{OPEN_MPI} --host n8:2,n9:2 TASK": MPIRUN,
        f"{HYDRA} {HYDRA_SSH} -hosts n8:2,n9:2 TASK": MPIRUN,
        "TASK": ALONE,
    }
    real_slurm.run(write_script(cells, tmp_path), cwd=tmp_path)
    assert_cells(cells, tmp_path, HOSTS)
