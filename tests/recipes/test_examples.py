"""The examples train, on several nodes of a real Slurm and without any."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from example_runs import ENVIRONMENT, accuracies, srun
from folders import EXAMPLES, ROOT
from slurm_cluster import SlurmCluster

pytestmark = pytest.mark.tensorflow

BATCH_FILES = sorted(EXAMPLES.glob("*/*.sbatch"))


@pytest.mark.slurm
def test_mirrored_trains_on_four_nodes_to_equal_weights(real_slurm: SlurmCluster) -> None:
    output = srun(real_slurm, "-w n9,n10,n11,n12 -N4 -n4", "mirrored")
    reports = re.findall(r"^rank (\d) \(worker (\d) of 4\): .* weights (\w+)$", output, re.M)
    assert sorted(rank for rank, _, _ in reports) == list("0123")
    assert len({weights for _, _, weights in reports}) == 1
    assert len(set(accuracies(output))) == 1
    assert min(accuracies(output)) > 0.9


@pytest.mark.slurm
def test_a_parameter_server_cluster_trains_and_ends(real_slurm: SlurmCluster) -> None:
    output = srun(real_slurm, "-w n8,n9,n10 -N3 -n5 -m cyclic", "parameter_server", "--ps 2")
    assert min(accuracies(output)) > 0.9


@pytest.mark.slurm
def test_the_legacy_server_trains_and_ends(real_slurm: SlurmCluster) -> None:
    output = srun(real_slurm, "-w n9,n10 -N2 --ntasks-per-node=2", "legacy_server")
    assert min(accuracies(output)) > 0.9
    steps = re.findall(r"^worker (\d): (\d+) of (\d+) steps$", output, re.M)
    assert sorted(worker for worker, _, _ in steps) == list("012")
    assert sum(int(own) for _, own, _ in steps) >= int(steps[0][2])


@pytest.mark.slurm
@pytest.mark.newest
def test_a_data_service_prepares_for_two_workers(real_slurm: SlurmCluster) -> None:
    options = "-w n8,n9 -N2 --ntasks-per-node=2"
    output = srun(real_slurm, options, "data_service", "--data-workers 1 --epochs 2")
    measured = re.findall(r"^prepared by (.*): \d+ images/s, [\d.]+ ms of CPU", output, re.M)
    assert measured == ["the workers themselves", "1 data worker"]
    assert min(accuracies(output)) > 0.2  # of ten digits, by chance one is right in ten


@pytest.mark.newest
@pytest.mark.slurm
def test_a_batch_file_trains_as_it_stands(real_slurm: SlurmCluster, tmp_path: Path) -> None:
    submit = f"sbatch --wait --output={tmp_path}/out examples/mirrored/train.sbatch --epochs 2"
    real_slurm.run(submit, env=ENVIRONMENT, cwd=ROOT, timeout=300)
    output = (tmp_path / "out").read_text()
    weights = re.findall(r"^\d: rank \d \(worker \d of 4\): .* weights (\w+)$", output, re.M)
    assert len(weights) == 4
    assert len(set(weights)) == 1


@pytest.mark.slurm
@pytest.mark.parametrize("file", BATCH_FILES, ids=lambda file: f"{file.parent.name}/{file.name}")
def test_batch_files_are_accepted(real_slurm: SlurmCluster, file: Path) -> None:
    real_slurm.run(f"sbatch --test-only {file.name}", cwd=file.parent)
    real_slurm.run(f"shellcheck {file.name}", cwd=file.parent)


def test_parameter_servers_train_under_the_local_launcher() -> None:
    """README's commands do the same for the mirrored example."""
    script = str(EXAMPLES / "parameter_server" / "train.py")
    done = subprocess.run(
        [sys.executable, "-m", "slurm_resolver", "run", "-n3", "--", sys.executable, script],
        env={**os.environ, **ENVIRONMENT},
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr
    assert len(accuracies(done.stdout)) == 1
