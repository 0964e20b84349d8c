"""`slurm-resolver check` on the real Slurm: what each check sees."""

from __future__ import annotations

import json
import re
import shlex
import sys
from pathlib import Path
from typing import Any, Dict

import pytest
from network_faults import packets_dropped
from slurm_cluster import SlurmCluster

pytestmark = pytest.mark.slurm

CHECK = shlex.join([sys.executable, "-m", "slurm_resolver", "check"])
IDS = [
    *("presence", "layout", "agreement", "names", "ports", "reach", "speed", "gpus", "tensorflow"),
    *("keras", "proxies", "clocks", "requeue", "preemption", "signal", "log"),
]


def results(output: str) -> Dict[str, Any]:
    (line,) = output.splitlines()  # printed once
    printed = json.loads(line)
    assert printed["ok"] == all(check["status"] != "failed" for check in printed["checks"])
    return {check["id"]: check for check in printed["checks"]}


def run(slurm: SlurmCluster, options: str, arguments: str = "", status: int = 0) -> Dict[str, Any]:
    done = slurm.run(f"srun {options} {CHECK} --json {arguments}", check=False)
    assert done.returncode == status, done.stdout + done.stderr
    return results(done.stdout)


def test_a_healthy_step(real_slurm: SlurmCluster) -> None:
    options = "-w n8,n9,n10 -N3 --ntasks-per-node=2 -m cyclic"
    checks = run(real_slurm, options, "--jobs chief=1,ps=1,worker=-1")
    assert list(checks) == IDS
    statuses = {id: check["status"] for id, check in checks.items()}
    tensorflow = {"tensorflow", "keras"}  # as they are installed here, or not
    batch = {"requeue", "signal", "log"}  # there is no batch file
    others = {id for id, status in statuses.items() if status != "ok"}
    assert others - tensorflow == {"gpus", *batch}
    assert {statuses[id] for id in batch} == {"skipped"}
    assert checks["layout"]["detail"] == "cyclic, from environment"
    assert checks["names"]["detail"] == "3 host names resolve on every node"
    assert checks["reach"]["detail"] == "30 connections between the tasks"
    assert re.match(r"round trip \d+ µs; between neighbours \d+ MB/s", checks["speed"]["detail"])


def test_the_grid(real_slurm: SlurmCluster) -> None:
    lines = real_slurm.run(f"srun -w n8,n9 -N2 -n2 {CHECK}").stdout.splitlines()
    assert [line.split()[0] for line in lines] == IDS
    assert lines[0] == "presence    ok       all 2 tasks have come"


def test_gpus_that_tasks_share(real_slurm: SlurmCluster) -> None:
    shared = run(real_slurm, "-w n8 -N1 -n2 --gpus=1")["gpus"]
    assert shared["status"] == "warning"
    assert shared["detail"] == "GPU 0 of n8 is used by the ranks 0, 1"
    alone = run(real_slurm, "-w n8,n9 -N2 --ntasks-per-node=2 --gpus-per-task=1")["gpus"]
    assert (alone["status"], alone["detail"]) == ("ok", "4, each used by one task")


def test_a_taken_port(real_slurm: SlurmCluster) -> None:
    hold = "import socket, time; s = socket.create_server(('', 24501)); time.sleep(60)"
    listening = "until grep -q ':5FB5 .* 0A ' /proc/net/tcp; do sleep 0.02; done"
    script = (
        f'if [ "$SLURM_PROCID" = 3 ]; then {sys.executable} -c "{hold}" & {listening}; fi; '
        f"{CHECK} --json --port-base 24500; status=$?; kill %1 2>/dev/null; exit $status"
    )
    step = f"srun -w n9,n10 -N2 --ntasks-per-node=2 bash -c {shlex.quote(script)}"
    done = real_slurm.run(step, check=False)
    assert done.returncode == 1
    checks = results(done.stdout)
    assert re.fullmatch(
        r"rank 3 \(worker 3 on n10\): port 24501: Address already in use, by process \d+ "
        r"\(python\S*\)",
        checks["ports"]["detail"],
    )
    assert checks["reach"]["status"] == "failed"


def test_tasks_that_disagree(real_slurm: SlurmCluster) -> None:
    script = f'{CHECK} --json --jobs "ps=$((SLURM_PROCID / 3)),worker=-1"'
    step = f"srun -w n9,n10 -N2 --ntasks-per-node=2 bash -c {shlex.quote(script)}"
    done = real_slurm.run(step, check=False)
    assert done.returncode == 1
    agreement = results(done.stdout)["agreement"]
    assert agreement["status"] == "failed"
    assert "disagree on the jobs (argument jobs): rank 3 (" in agreement["detail"]
    assert '{"ps": 1, "worker": 3}' in agreement["detail"]


def test_a_task_that_is_missing(real_slurm: SlurmCluster) -> None:
    script = f'[ "$SLURM_PROCID" = 1 ] || {CHECK} --json --timeout 2'
    step = f"srun -w n9,n10 -N2 --ntasks-per-node=2 bash -c {shlex.quote(script)}"
    done = real_slurm.run(step, check=False)
    assert done.returncode == 1
    presence = results(done.stdout)["presence"]
    assert presence["status"] == "failed"
    assert "1 of 4 tasks are missing" in presence["detail"]
    assert "rank 1 (worker 1 on n9)" in presence["detail"]


def test_packets_that_are_dropped_between_two_nodes(real_slurm: SlurmCluster) -> None:
    """n8, where the tasks meet, is reached by all; n10 does not reach n9."""
    with packets_dropped(real_slurm, "n10", "n9"):
        reach = run(real_slurm, "-w n8,n9,n10 -N3 -n3", status=1)["reach"]
    assert "rank 2 (worker 2 on n10) cannot reach rank 1 (worker 1 on n9) at n9:" in reach["detail"]
    assert "timed out" in reach["detail"]


def test_a_step_of_one_task(real_slurm: SlurmCluster) -> None:
    checks = run(real_slurm, "-n1")
    assert checks["presence"]["detail"] == "all 1 tasks have come"
    assert checks["speed"]["status"] == "skipped"


@pytest.mark.parametrize(
    ("options", "statuses"),
    [
        ("--no-requeue", "warning ok warning warning"),
        ("--requeue --signal=USR1@60 --open-mode=append", "ok ok ok ok"),
    ],
)
def test_what_slurm_says_of_a_batch_job(
    real_slurm: SlurmCluster, tmp_path: Path, options: str, statuses: str
) -> None:
    check = f"{sys.executable} -m slurm_resolver check --json"
    batch_file = tmp_path / "job.sbatch"
    batch_file.write_text(
        f"#!/bin/bash\n#SBATCH -N2 -n2 -t 5 {options}\n#SBATCH --output={tmp_path}/out\n"
        f"srun {check}\n"
    )
    real_slurm.run(f"sbatch --wait {batch_file}")
    checks = {c["id"]: c for c in json.loads((tmp_path / "out").read_text())["checks"]}
    found = [checks[id]["status"] for id in ("requeue", "preemption", "signal", "log")]
    assert found == statuses.split()
    assert checks["preemption"]["detail"].startswith("jobs are not preempted here")
