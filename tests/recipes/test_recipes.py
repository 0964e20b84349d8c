"""The examples that measure: their tables, what they conclude, and GPUs that do not work."""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import List

import pytest
from example_runs import ENVIRONMENT, accuracies
from folders import EXAMPLES
from slurm_cluster import SlurmCluster

PS_RATIO = EXAMPLES / "async_master" / "ps_ratio.py"


def table_of(text: str) -> List[List[str]]:
    """The rows of a Markdown table, without its headings."""
    lines = [line for line in text.splitlines() if line.startswith("|")]
    return [line.strip("| ").split(" | ") for line in lines[2:]]


def in_allocation(slurm: SlurmCluster, command: str) -> str:
    """What a program printed that starts its own steps on three nodes."""
    options = "--quiet -w n9,n10,n11 -N3 --ntasks-per-node=1 --cpus-per-task=2"
    done = slurm.run(f"salloc {options} python -u {command}", env=ENVIRONMENT, timeout=600)
    return done.stdout


@pytest.mark.nightly
@pytest.mark.tensorflow
@pytest.mark.slurm
@pytest.mark.newest
def test_ps_ratio_measures_in_an_allocation(real_slurm: SlurmCluster, tmp_path: Path) -> None:
    arguments = f"--ps 1 2 --repeats 1 --output {tmp_path} --steps 1500 --width 64"
    output = in_allocation(real_slurm, f"{PS_RATIO} {arguments}")
    text = (tmp_path / "ps_ratio.md").read_text(encoding="utf-8")
    assert output.endswith(text)
    rows = table_of(text)
    assert [row[:3] for row in rows] == [["1", "2", "1 : 2"], ["2", "1", "2 : 1"]]
    # each run's own words, in their order
    told = re.findall(r"all workers together (\d+) steps/s, (\d+) images/s", output)
    assert [float(row[3]) for row in rows] == pytest.approx([int(one) for one, _ in told], abs=1)
    assert [row[5] for row in rows] == [images for _, images in told]
    assert [float(row[6]) for row in rows] == accuracies(output)
    assert (tmp_path / "ps_ratio.png").read_bytes().startswith(b"\x89PNG")


@pytest.mark.nightly
@pytest.mark.tensorflow
@pytest.mark.slurm
@pytest.mark.newest
def test_keras_cloud_scales_over_the_nodes_of_an_allocation(
    real_slurm: SlurmCluster, tmp_path: Path
) -> None:
    script = EXAMPLES / "keras_cloud" / "scaling.py"
    output = in_allocation(real_slurm, f"{script} --output {tmp_path} --epochs 1 --batch-size 8")
    for count, run in enumerate(output.split("--- nodes: ")[1:], 1):
        reports = re.findall(r"^rank \d on (n\d+): loss .*weights (\w+)", run, re.M)
        # from Slurm 24.11 on, a step starts on the node after those of the step before
        assert len({node for node, _ in reports}) == len(reports) == count
        assert len({weights for _, weights in reports}) == 1
    text = (tmp_path / "scaling.md").read_text(encoding="utf-8")
    assert output.endswith(text)
    rows = table_of(text)
    assert [row[:2] for row in rows] == [["1", "1"], ["2", "2"], ["3", "3"]]
    for row in rows:
        assert float(row[3]) == pytest.approx(float(rows[0][2]) / float(row[2]), rel=0.1)
    # the nodes are this machine, and ask for two CPUs each
    assert ("all nodes are one machine with" in text) == ((os.cpu_count() or 1) < 3 * 2)
    assert (tmp_path / "scaling.png").read_bytes().startswith(b"\x89PNG")


@pytest.mark.nightly
@pytest.mark.tensorflow
@pytest.mark.slurm
@pytest.mark.newest
def test_gpus_that_do_not_work_are_named(real_slurm: SlurmCluster) -> None:
    program = f"python {EXAMPLES / 'cookbook' / 'matmul.py'} gpu 100"
    step = f"srun -w n9 -N1 -n2 --gpus-per-node=2 {program}"
    done = real_slurm.run(step, env=ENVIRONMENT, check=False)
    assert done.returncode == 1
    told = re.findall(r"^(rank \d on n9) has no GPU: it was given GPU (\d), but", done.stderr, re.M)
    assert sorted(told) == [("rank 0 on n9", "0"), ("rank 1 on n9", "1")]
    assert "Traceback" not in done.stderr
