"""The cluster tutorial's forms: what they learn, who does how much, and that all tasks end."""

from __future__ import annotations

import os
import re
import socket
import subprocess
import sys
from pathlib import Path
from typing import List

import pytest
from example_runs import ENVIRONMENT, accuracies, batch_file
from folders import EXAMPLES
from slurm_cluster import SlurmCluster

pytestmark = [pytest.mark.tensorflow]

FOLDER = EXAMPLES / "cluster_tutorial"
OPTIONS = "-w n9,n10 -N2 --ntasks-per-node=2"


def free_ports() -> List[int]:
    """Two ports that nobody listens on; the kernel does not give them out again at once."""
    with socket.socket() as one, socket.socket() as two:
        one.bind(("localhost", 0))
        two.bind(("localhost", 0))
        return [one.getsockname()[1], two.getsockname()[1]]


def in_graph(slurm: SlurmCluster, arguments: str) -> str:
    """What the tasks printed; that srun returns, and with 0, tells that all have ended well."""
    script = FOLDER / "in_graph.py"
    command = f"srun {OPTIONS} --label --kill-on-bad-exit=1 python -u {script} {arguments}"
    return slurm.run(command, env=ENVIRONMENT, timeout=240).stdout


def between_graph(slurm: SlurmCluster, arguments: str) -> str:
    """What the batch file wrote, in which the server never ends by itself."""
    allocation = "-w n9,n10 -N2 -n3 --cpus-per-task=2"
    return batch_file(slurm, allocation, f"train.sbatch {arguments}", FOLDER)


def test_the_variables_of_a_local_cluster_are_on_one_task_and_its_layers_on_the_other() -> None:
    hosts = ",".join(f"localhost:{port}" for port in free_ports())
    output = subprocess.run(
        [sys.executable, str(FOLDER / "local.py"), f"--hosts={hosts}", "--steps=300"],
        env={**os.environ, **ENVIRONMENT},
        stdout=subprocess.PIPE,
        text=True,
        timeout=300,
        check=True,
    ).stdout
    assert output.startswith("Hello, distributed TensorFlow!\n")
    places = dict(re.findall(r"^(\w+) on /job:local/replica:0/task:(\d)/", output, re.M))
    assert places == {"hidden_weights": "0", "weights": "0", "hidden": "1", "logits": "1"}
    assert min(accuracies(output)) > 0.9


@pytest.mark.slurm
@pytest.mark.newest
def test_the_towers_of_a_client_train_each_by_itself(real_slurm: SlurmCluster) -> None:
    output = in_graph(real_slurm, "--steps 600")
    # Only the client, rank 0, has something to say.
    assert {line.split(":")[0] for line in output.splitlines()} == {"0"}
    (updates,) = re.findall(r"asynchronous, 2 workers: updates (\d+)\+(\d+),", output)
    own = [int(number) for number in updates]
    assert min(own) > 0
    assert 600 <= sum(own) <= 601  # the other tower's was under way
    assert min(accuracies(output)) > 0.9


@pytest.mark.slurm
@pytest.mark.newest
def test_the_towers_of_a_client_train_in_step(real_slurm: SlurmCluster, mnist_file: Path) -> None:
    output = in_graph(real_slurm, f"--sync --steps 300 --data {mnist_file}")
    assert "synchronous, 2 workers: updates 300," in output
    assert min(accuracies(output)) > 0.85


def test_the_between_graph_program_knows_nothing_of_slurm() -> None:
    assert "slurm" not in (FOLDER / "between_graph.py").read_text(encoding="utf-8").lower()


@pytest.mark.slurm
@pytest.mark.newest
def test_workers_with_graphs_of_their_own_train_each_by_itself(
    real_slurm: SlurmCluster, mnist_file: Path
) -> None:
    output = between_graph(real_slurm, f"--train_steps 600 --data {mnist_file}")
    reports = re.findall(r"^\d: worker (\d): (\d+) steps for 600 updates", output, re.M)
    assert sorted(worker for worker, _ in reports) == ["0", "1"]
    assert 600 <= sum(int(steps) for _, steps in reports) <= 605
    assert min(accuracies(output)) > 0.85


@pytest.mark.slurm
@pytest.mark.newest
def test_workers_with_graphs_of_their_own_train_in_step(real_slurm: SlurmCluster) -> None:
    output = between_graph(real_slurm, "--sync --train_steps 300")
    reports = re.findall(r"^\d: worker (\d): (\d+) steps for 300 updates", output, re.M)
    assert sorted(worker for worker, _ in reports) == ["0", "1"]
    # Each update takes two gradients: one of each worker, but for an overtaking in the queue.
    assert [int(steps) for _, steps in reports] == pytest.approx([300, 300], abs=5)
    assert min(accuracies(output)) > 0.9
