"""Nodes whose names do not resolve, as in clouds and in Kubernetes."""

from __future__ import annotations

import shlex
import sys
from pathlib import Path
from typing import Dict, List, Tuple

import pytest
from folders import HELPERS
from slurm_cluster import SlurmCluster
from task_accounts import accounts, assert_right

pytestmark = pytest.mark.slurm

TASK = shlex.join([sys.executable, str(HELPERS / "slurm_task.py")])
NAMELESS = "printf '127.0.0.1 localhost\\n10.77.0.254 login\\n'"

# what the hosts file of a task holds; srun's options; the hosts of the addresses, by rank
CASES: Dict[str, Tuple[str, str, List[str]]] = {
    "no names": (NAMELESS, "-m cyclic", ["10.77.0.1", "10.77.0.2", "10.77.0.1", "10.77.0.2"]),
    "its own at 127.0.1.1, as Debian has it": (
        f"{NAMELESS}; echo 127.0.1.1 $SLURMD_NODENAME",
        "-m cyclic",
        ["10.77.0.1", "10.77.0.2", "10.77.0.1", "10.77.0.2"],
    ),
    "a layout that only the tasks know": (
        NAMELESS,
        "-m arbitrary -w n8,n8,n9,n9",
        ["10.77.0.1", "10.77.0.1", "10.77.0.2", "10.77.0.2"],
    ),
    # Nor can Slurm be asked, as srun's directory is not in the tasks' PATH.
    "no names, by PMI-2": (
        f"{NAMELESS}; export PATH=/nowhere",
        "--mpi=pmi2 -m cyclic",
        ["10.77.0.1", "10.77.0.2", "10.77.0.1", "10.77.0.2"],
    ),
    "all names": ("cat /etc/hosts", "-m cyclic", ["n8", "n9", "n8", "n9"]),
}


@pytest.mark.parametrize("case", CASES)
def test_each_task_is_reached_at_its_address(
    real_slurm: SlurmCluster, tmp_path: Path, case: str
) -> None:
    names, options, hosts = CASES[case]
    output = tmp_path / "accounts"
    output.mkdir()
    script = (
        f"mount=$(type -p mount) && {{ {names}; }} > {tmp_path}/$SLURM_PROCID.hosts && "
        f"$mount --bind {tmp_path}/$SLURM_PROCID.hosts /etc/hosts && "
        f"exec {TASK} --meet {tmp_path} 4"
    )
    nodes = "" if "-w" in options else "-w n8,n9 -N2 --ntasks-per-node=2"
    step = f"srun -n4 {nodes} {options} unshare --mount bash -c {shlex.quote(script)}"
    real_slurm.run(step, env={"TASK_OUTPUT": str(output)}, cwd=tmp_path)
    lines = accounts(output)
    assert_right(lines)
    told = [task["address"].rpartition(":")[0] for task in lines[0]["cluster"]["tasks"]]
    assert told == hosts
    for line in lines:
        job_id = line["cluster"]["job_id"]
        assert line["answers"] == [f"{job_id}:{rank}" for rank in range(4)]


def test_the_addresses_may_be_asked_for(real_slurm: SlurmCluster, tmp_path: Path) -> None:
    """Also by a child process, which gets what its task was told."""
    code = (
        "import os, subprocess, sys, slurm_resolver as sr;"
        "print(*(task.address.split(':')[0] for task in sr.resolve(node_address='slurm').tasks),"
        "flush=True);"
        "again = 'AGAIN' in os.environ or subprocess.run([sys.executable, '-c', sys.argv[1],"
        " sys.argv[1]], env={**os.environ, 'AGAIN': '1'}, check=True)"
    )
    step = f"srun -w n8,n9 -N2 -n2 {sys.executable} -c {shlex.quote(code)} {shlex.quote(code)}"
    done = real_slurm.run(step, cwd=tmp_path)
    assert done.stdout.splitlines() == ["10.77.0.1 10.77.0.2"] * 4
