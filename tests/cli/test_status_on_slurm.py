"""`slurm-resolver status` during a training on a real Slurm."""

from __future__ import annotations

import json
import shlex
import sys
from pathlib import Path

import pytest
from folders import helper
from kinds import Fields, Strings
from slurm_cluster import SlurmCluster

pytestmark = pytest.mark.tensorflow

STATUS = f"{sys.executable} -m slurm_resolver status"
PROGRAM = shlex.join([*helper("stuck_training.py"), "slow"])


def job_id_of(name: str, slurm: SlurmCluster) -> int:
    """Waits for a job with this name, because the job of the test before may still be completing.

    The id of a heterogeneous job is the lowest of its components' ids.
    """
    ids: Strings = []
    while not ids:
        ids = slurm.run(f"squeue -h -n {name} -o %A").stdout.split()
    return min(map(int, ids))


def test_what_each_worker_does_is_shown(real_slurm: SlurmCluster, tmp_path: Path) -> None:
    job = real_slurm.popen(
        f"srun -J training -w n9,n10 -N2 -n3 -t 5 {PROGRAM}",
        env={"TF_CPP_MIN_LOG_LEVEL": "3"},
        cwd=tmp_path,
    )
    try:
        job_id = job_id_of("training", real_slurm)
        inside = f"srun --jobid {job_id} --overlap -N1 -n1"
        found: Fields = {"workers": []}
        while len([worker for worker in found["workers"] if worker["begun"] > 4]) < 3:
            assert job.poll() is None, job.communicate()
            found = json.loads(
                real_slurm.run(f"{inside} -w n10 {STATUS} --json", status=None).stdout
                or '{"workers": []}'
            )
        lines = real_slurm.run(f"{inside} {STATUS} {job_id}").stdout.splitlines()
        other = real_slurm.run(f"{inside} {STATUS} {job_id}.7", status=1)
    finally:
        real_slurm.run("scancel --me")
        job.communicate(timeout=60)
    assert [line.split()[0] for line in lines[:4]] == ["worker"] * 4  # below a heading
    for worker in found["workers"]:
        assert worker["stage"] == "training"
        assert worker["ms"] > 300
        assert worker["seconds"]["between steps"] > 0  # its callback sleeps 0.3 s a step
    assert other.stdout == ""
    assert f"no coordination service answers in a step of job {job_id}" in other.stderr


FOUND = {
    "port_base": ("-w n9,n10 -N2 -n3 {program}", "port_base=9000", "", "--port 9002"),
    "heterogeneous": ("-n2 -w n11 {program} : -n3 -w n9,n10 {program}", "", "--het-group 1", ""),
    "arbitrary": (
        "-n3 -m arbitrary -w n10,n9,n9 {program} : -n2 -w n11 {program}",
        "",
        "--het-group 1",
        "",
    ),
}


@pytest.mark.parametrize("name", FOUND)
def test_the_service_is_found(real_slurm: SlurmCluster, name: str) -> None:
    command, options, inside, given = FOUND[name]
    words = shlex.join(
        [
            sys.executable,
            "-c",
            (
                "import signal, slurm_resolver as sr; "
                "from slurm_resolver.coordination.client import connect; "
                f"connect(sr.resolve({options}).service); signal.pause()"
            ),
        ]
    )
    job = real_slurm.popen(f"srun -J {name} -t 5 {command.format(program=words)}")
    found = ""
    try:
        job_id = job_id_of(name, real_slurm)
        status = f"srun --jobid {job_id} {inside} --overlap -N1 -n1 {STATUS} {job_id} {given}"
        while not found:
            assert job.poll() is None, job.communicate()
            found = real_slurm.run(status, status=None).stdout
    finally:
        real_slurm.run("scancel --me")
        job.communicate(timeout=60)
    assert found.startswith("no worker reports yet: only slurm_resolver.MultiWorker")


def test_a_job_without_workers_says_so(real_slurm: SlurmCluster) -> None:
    done = real_slurm.run(f"salloc -n1 srun -n1 {STATUS}", status=1)
    assert "has not created a strategy of slurm_resolver, trains alone, or has ended" in done.stderr
    assert "If it sets port_base, add --port" in done.stderr
    assert "node_address" not in done.stderr
    assert done.stderr.count("Connection refused") == 1  # at three ports


def test_a_job_that_does_not_run_says_why(real_slurm: SlurmCluster) -> None:
    job_id = real_slurm.run("sbatch --parsable --hold -o /dev/null --wrap true").stdout.strip()
    held = real_slurm.run(f"{STATUS} {job_id}", status=1).stderr
    real_slurm.run(f"scancel {job_id}")
    cancelled = real_slurm.run(f"{STATUS} {job_id}", status=1).stderr
    assert f"job {job_id} is PENDING (JobHeldUser); scontrol show job {job_id} says more" in held
    assert f"job {job_id} is CANCELLED" in cancelled
