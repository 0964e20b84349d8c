"""Nodes whose names do not resolve, as in clouds and in Kubernetes."""

from __future__ import annotations

import shlex
import sys
from pathlib import Path

import pytest
from kinds import Strings
from slurm_cluster import SlurmCluster
from task_accounts import TASK, accounts, assert_right

NAMELESS = "printf '127.0.0.1 localhost\\n10.77.0.254 login\\n'"

# the command that prints a task's hosts file, srun's options, and the hosts of all ranks
CASES: dict[str, tuple[str, str, Strings]] = {
    "no names": (
        NAMELESS,
        "-m cyclic",
        ["10.77.0.1", "10.77.0.2", "10.77.0.1", "10.77.0.2"],
    ),
    "a layout that only the tasks know": (
        NAMELESS,
        "-m arbitrary -w n8,n8,n9,n9",
        ["10.77.0.1", "10.77.0.1", "10.77.0.2", "10.77.0.2"],
    ),
    "all names": (
        "cat /etc/hosts",
        "-m cyclic",
        ["10.77.0.1", "10.77.0.2"] * 2,
    ),
}


def step_of(names: str, options: str, arguments: str, folder: Path) -> str:
    """Returns a step of four tasks on two nodes, whose hosts files contain these names."""
    script = (
        f"mount=$(type -p mount) && {{ {names}; }} > {folder}/$SLURM_PROCID.hosts && "
        f"$mount --bind {folder}/$SLURM_PROCID.hosts /etc/hosts && exec {TASK} {arguments}"
    )
    nodes = "" if "-w" in options else "-w n8,n9 -N2 --ntasks-per-node=2"
    return f"srun -n4 {nodes} {options} unshare --mount bash -c {shlex.quote(script)}"


@pytest.mark.parametrize("case", CASES)
def test_slurm_knows_the_addresses(
    real_slurm: SlurmCluster, tmp_path: Path, output: Path, case: str
) -> None:
    names, options, hosts = CASES[case]
    real_slurm.run(
        step_of(
            names,
            options,
            f"--meet {tmp_path} 4 --node-address slurm",
            tmp_path,
        ),
        env={"TASK_OUTPUT": str(output)},
        cwd=tmp_path,
    )
    lines = accounts(output)
    assert_right(lines)
    assert [task["address"].rpartition(":")[0] for task in lines[0]["cluster"]["tasks"]] == hosts
    for line in lines:
        job_id = line["cluster"]["job_id"]
        assert line["answers"] == [f"{job_id}:{rank}" for rank in range(4)]


@pytest.mark.parametrize("options", ["-m cyclic", "-m arbitrary -w n8,n8,n9,n9"])
def test_names_that_do_not_resolve_are_named_with_the_remedy(
    real_slurm: SlurmCluster, tmp_path: Path, output: Path, options: str
) -> None:
    real_slurm.run(
        step_of(NAMELESS, options, "", tmp_path),
        env={"TASK_OUTPUT": str(output)},
        cwd=tmp_path,
        status=None,
    )
    lines = accounts(output)
    assert len(lines) == 4
    for line in lines:
        assert "does not resolve here" in line["error"]
        assert "node_address='slurm'" in line["error"]


CHECK = f"{sys.executable} -m slurm_resolver check --timeout 10"
# How each node gets the addresses of another network, or of another node before those of its name.
ELSEWHERE = {
    "10.99.0.1": "sed 's/10.77.0/10.99.0/' /etc/hosts",
    "10.77.0.3": "awk '/ n[89]$/ { print \"10.77.0.3\", $2 } { print }' /etc/hosts",
}


@pytest.mark.newest
@pytest.mark.parametrize("address", ELSEWHERE)
def test_names_that_lead_elsewhere(real_slurm: SlurmCluster, tmp_path: Path, address: str) -> None:
    step = step_of(
        ELSEWHERE[address],
        "-m cyclic",
        "",
        tmp_path,
    ).replace(TASK, CHECK)
    hint = (
        "; if a firewall between the nodes blocks the port, open it"
        "; if Slurm has another address (scontrol show node), set --node-address slurm, or "
    )
    shown = real_slurm.run(step, status=None).stdout
    assert f"at {address}{hint}" in shown
    assert all(hint in line for line in shown.splitlines() if "  failed  " in line)
