"""The heterogeneous example: who plays which part on which nodes, what it learns, that it ends."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Dict, Iterator, Tuple

import pytest
from example_runs import ENVIRONMENT, accuracies
from folders import EXAMPLES
from slurm_cluster import Node, SlurmCluster, started
from slurm_installation import Installation

pytestmark = [pytest.mark.tensorflow, pytest.mark.slurm]

FOLDER = EXAMPLES / "heterogeneous"
TRAIN = f"python -u {FOLDER / 'train.py'}"


@pytest.fixture(scope="module")
def mixed_slurm(
    installation: Installation, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[SlurmCluster]:
    """Two nodes with GPUs, which Slurm prefers, and two without, which are first by name."""
    nodes = [Node("g1", gpus=2), Node("g2", gpus=2), Node("c9"), Node("c10")]
    heavy = [f"NodeName=c{9 + i} NodeAddr=10.77.0.{3 + i} CPUs=8 Weight=9" for i in range(2)]
    directory = tmp_path_factory.mktemp("mixed")
    with started(
        SlurmCluster(nodes, directory, extra_conf=heavy, installation=installation)
    ) as cluster:
        yield cluster


def parts(output: str) -> Dict[str, Tuple[int, str, str]]:
    """By job and index: the rank, the node and the GPUs that the task told."""
    told = re.findall(r"(\w+ \d+) \(rank (\d+) on (\w+)\): GPUs (\S+)$", output, re.M)
    return {part: (int(rank), node, gpus) for part, rank, node, gpus in told}


def test_a_heterogeneous_step_trains_on_mnist_and_ends(
    mixed_slurm: SlurmCluster, mnist_file: Path
) -> None:
    train_it = f"{TRAIN} --epochs 4 --data {mnist_file}"
    output = mixed_slurm.run(
        f"srun --kill-on-bad-exit=1 -w g2 -N1 -n2 --gpus-per-node=2 {train_it}"
        f" : -w c9 -N1 -n2 {train_it}",
        env=ENVIRONMENT,
        timeout=420,
    ).stdout
    assert parts(output) == {
        "worker 0": (0, "g2", "0"),
        "worker 1": (1, "g2", "1"),
        "chief 0": (2, "c9", "none"),
        "ps 0": (3, "c9", "none"),
    }
    assert len(re.findall(r"^epoch \d of 4: loss [\d.]+, \d+ images/s$", output, re.M)) == 4
    assert len(accuracies(output)) == 1
    assert accuracies(output)[0] > 0.8


# As sbatch --wait, which looks only every 10 s. The option before the colon is component 0's.
SUBMIT = """\
job=$(sbatch --parsable --output={} --ntasks-per-node=1 : --ntasks=3 train.sbatch --epochs 8)
while squeue --noheader --jobs="$job" | grep --quiet .; do sleep 0.1; done
scontrol --oneliner show job "$job" | grep -o ' JobState=[A-Z]* \\| ExitCode=[0-9:]*'"""


@pytest.mark.newest
def test_the_batch_file_puts_each_part_where_it_belongs(
    mixed_slurm: SlurmCluster, tmp_path: Path
) -> None:
    submit = SUBMIT.format(tmp_path / "out")
    done = mixed_slurm.run(submit, env=ENVIRONMENT, cwd=FOLDER, timeout=420)
    output = (tmp_path / "out").read_text()
    # Each component has a state and a status.
    assert done.stdout.split() == ["JobState=COMPLETED", "ExitCode=0:0"] * 2, output
    found = parts(output)
    nodes = {part: node for part, (_, node, _) in found.items()}
    assert {part: (rank, gpus) for part, (rank, _, gpus) in found.items()} == {
        "worker 0": (0, "0,1"),
        "worker 1": (1, "0,1"),
        "chief 0": (2, "none"),
        "ps 0": (3, "none"),
        "ps 1": (4, "none"),
    }
    assert {nodes["worker 0"], nodes["worker 1"]} == {"g1", "g2"}
    assert {nodes["ps 0"], nodes["ps 1"]} == {"c9", "c10"}
    assert nodes["chief 0"] == nodes["ps 0"]
    assert re.search(r"chief: weights on ps 0 \d+, ps 1 \d+$", output, re.M)
    assert len(accuracies(output)) == 1
    assert accuracies(output)[0] > 0.9


WORKERS_ON_BOTH = """\
#!/bin/bash
#SBATCH --nodelist=g1 --ntasks=2 --gpus-per-node=2
#SBATCH hetjob
#SBATCH --nodelist=c9 --ntasks=2
srun --het-group=0,1 bash -c 'slurm-resolver show --json > $SLURM_PROCID'
"""


@pytest.mark.newest
def test_workers_on_nodes_without_gpus_do_not_take_the_batch_scripts(
    mixed_slurm: SlurmCluster, tmp_path: Path
) -> None:
    (tmp_path / "job").write_text(WORKERS_ON_BOTH)
    wait = 'while squeue --noheader --jobs="$job" | grep --quiet .; do sleep 0.1; done'
    mixed_slurm.run(f"job=$(sbatch --parsable job); {wait}", env=ENVIRONMENT, cwd=tmp_path)
    told = [json.loads((tmp_path / str(rank)).read_text())["self"] for rank in range(4)]
    assert [own["gpus"] for own in told] == [["0"], ["1"], [], []]


@pytest.mark.newest
def test_it_trains_in_a_plain_step(mixed_slurm: SlurmCluster) -> None:
    options = "-w g1,g2 -N2 --ntasks-per-node=2 -m cyclic --gpus-per-node=2"
    output = mixed_slurm.run(
        f"srun --kill-on-bad-exit=1 {options} {TRAIN} --epochs 4", env=ENVIRONMENT, timeout=420
    ).stdout
    assert parts(output) == {
        "chief 0": (0, "g1", "none"),
        "ps 0": (1, "g2", "none"),
        "worker 0": (2, "g1", "0,1"),
        "worker 1": (3, "g2", "0,1"),
    }
    assert accuracies(output)[0] > 0.85
