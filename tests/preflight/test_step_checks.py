"""`slurm-resolver check` on the real Slurm: the result of each check."""

from __future__ import annotations

import json
import os
import re
import shlex
import sys
from pathlib import Path

import pytest
from kinds import Fields, Texts
from local_run import COMMAND
from network_faults import packets_dropped
from slurm_cluster import SlurmCluster

CHECK = shlex.join([*COMMAND, "check"])
IDS = [
    "presence",
    "layout",
    "ports",
    "reach",
    "secret",
    "tensorflow",
    "keras",
    "gpus",
    "cpus",
    "imports",
    "agreement",
]


def results(output: str) -> Fields:
    (line,) = output.splitlines()  # only one task prints
    printed = json.loads(line)
    assert printed["ok"] == all(check["status"] != "failed" for check in printed["checks"])
    return {check["id"]: check for check in printed["checks"]}


def run(
    slurm: SlurmCluster,
    options: str,
    arguments: str = "",
    status: int = 0,
    env: Texts | None = None,
) -> Fields:
    done = slurm.run(
        f"srun {options} {CHECK} --json {arguments}",
        status=status,
        env=env,
    )
    return results(done.stdout)


def test_a_healthy_step(real_slurm: SlurmCluster) -> None:
    options = "-w n8,n9,n10 -N3 --ntasks-per-node=2 -m cyclic"
    options += " --export=ALL,SLURM_RESOLVER_SECRET=only-those-who-read-this-know-it"
    checks = run(real_slurm, options, "--jobs chief=1,ps=1,worker=-1")
    assert list(checks) == IDS
    statuses = {id: check["status"] for id, check in checks.items()}
    tensorflow = {"tensorflow", "keras"}  # depends on what is installed
    others = {id for id, status in statuses.items() if status != "ok"}
    assert others - tensorflow == {"gpus"}
    assert checks["layout"]["detail"] == "cyclic, from environment"
    assert checks["reach"]["detail"] == "each task reaches 5 others"


# Options of srun with a command before the check, and the warning of the check. taskset binds the
# tasks instead of Slurm, because all nodes share this machine's CPUs.
WORKSTATION = "env CUDA_VISIBLE_DEVICES=0"
WARNINGS = {
    "cpus": (
        "-n2 -c2 taskset -c 0",
        ".* 2 tasks of this node may use 1 CPU of its .* promises .* unset SLURM_CPU_BIND",
    ),
    "gpus": (f"-n4 --gpus-per-node=4 {WORKSTATION}", ".* SLURM_STEP_GPUS=0,1,2,3: something"),
    "gpus ": (f"-n4 --gpus-per-task=1 {WORKSTATION}", ".* SLURM_STEP_GPUS has 0 and 1: something"),
    "gpus  ": (
        "-n2 --gpus-per-node=4 env -u CUDA_VISIBLE_DEVICES",
        ".* SLURM_STEP_GPUS=0,1,2,3, but CUDA_VISIBLE_DEVICES is not set: .* Keep what srun",
    ),
}


@pytest.mark.parametrize("name", WARNINGS)
def test_what_a_training_would_suffer_from(real_slurm: SlurmCluster, name: str) -> None:
    options, told = WARNINGS[name]
    result = run(real_slurm, f"-w n8 -N1 {options}")[name.strip()]
    assert result["status"] == "warning"
    assert re.match(told, result["detail"])


def test_a_node_that_reads_slowly(real_slurm: SlurmCluster, tmp_path: Path) -> None:
    modules = tmp_path / "tensorflow" / "python"
    modules.mkdir(parents=True)
    (modules.parent / "__init__.py").touch()
    slow = modules / "slow.py"
    os.mkfifo(slow)
    script = (  # the file ends 4 s after the check has opened it
        f'if [ "$SLURMD_NODENAME" = n9 ]; then export PYTHONPATH={tmp_path}; sleep 4 >{slow} & fi; '
        f"{CHECK} --json"
    )
    done = real_slurm.run(
        f"srun -w n8,n9,n10 -N3 --ntasks-per-node=2 bash -c {shlex.quote(script)}"
    )
    imports = results(done.stdout)["imports"]
    assert imports["status"] == "warning"
    assert re.match(r"n9 took [\d.]+ s [^;]*--exclude=n9$", imports["detail"])


def test_a_taken_port(real_slurm: SlurmCluster) -> None:
    hold = "import socket, time; s = socket.create_server(('', 24501)); time.sleep(60)"
    listening = "until grep -q ':5FB5 .* 0A ' /proc/net/tcp; do sleep 0.02; done"
    script = (
        f'if [ "$SLURM_PROCID" = 3 ]; then {sys.executable} -c "{hold}" & {listening}; fi; '
        f"{CHECK} --json --port-base 24500; status=$?; kill %1 2>/dev/null; exit $status"
    )
    done = real_slurm.run(
        f"srun -w n9,n10 -N2 --ntasks-per-node=2 bash -c {shlex.quote(script)}",
        status=1,
    )
    checks = results(done.stdout)
    assert checks["ports"]["detail"] == (
        "worker 3 (rank 3 on n10): port 24501: Address already in use (ss -ltnp shows by what)"
    )
    assert checks["reach"]["status"] == "failed"


@pytest.mark.root
def test_packets_that_are_dropped_between_two_nodes(real_slurm: SlurmCluster) -> None:
    """All nodes reach n8, where the tasks meet, but n10 does not reach n9."""
    with packets_dropped(real_slurm, "n10", "n9"):
        reach = run(real_slurm, "-w n8,n9,n10 -N3 -n3", status=1)["reach"]
    assert (
        "worker 2 (rank 2 on n10): cannot reach worker 1 (rank 1 on n9) at n9:" in reach["detail"]
    )
    assert "timed out" in reach["detail"]
