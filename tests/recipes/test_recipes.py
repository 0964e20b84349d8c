"""The examples that measure: their tables, what they conclude, and GPUs that do not work."""

from __future__ import annotations

import importlib.util
import os
import re
from pathlib import Path
from types import ModuleType
from typing import Any, Dict, List, Optional

import pytest
from example_runs import ENVIRONMENT, accuracies
from folders import EXAMPLES
from slurm_cluster import SlurmCluster

PS_RATIO = EXAMPLES / "async_master" / "ps_ratio.py"

Speeds = Dict[int, List[Optional[float]]]  # of the runs with so many ps


def table_of(text: str) -> List[List[str]]:
    """The rows of a Markdown table, without its headings."""
    lines = [line for line in text.splitlines() if line.startswith("|")]
    return [line.strip("| ").split(" | ") for line in lines[2:]]


@pytest.fixture(scope="module")
def ps_ratio() -> ModuleType:
    """The example's ps_ratio.py, as a module."""
    spec = importlib.util.spec_from_file_location("ps_ratio", PS_RATIO)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def result(speed: float) -> Dict[str, Any]:
    return {"steps_per_second": speed, "images_per_second": 64 * speed, "test_accuracy": 0.9}


FASTER = "Each of its runs was faster than all runs of the others."
OVERLAP = "Not told apart, as the runs overlap: 3 ps : 5 workers."
FAILED = "One run does not tell a difference from noise: --repeats 3. Failed: 2 ps : 6 workers."


@pytest.mark.parametrize(
    ("speeds", "best", "sure"),
    [
        ({1: [100, 110, 90], 2: [200, 205, 150], 3: [120, 130, 125]}, "2 ps : 6", FASTER),
        ({1: [80, 90], 2: [100, 110], 3: [95, 101]}, "2 ps : 6", OVERLAP),
        ({1: [100, 90], 2: [130, None]}, "2 ps : 6", FAILED),
    ],
)
def test_the_best_ratio_has_the_highest_median(
    ps_ratio: ModuleType, speeds: Speeds, best: str, sure: str
) -> None:
    results = {ps: [run and result(run) for run in runs] for ps, runs in speeds.items()}
    rows = [ps_ratio.summarise(ps, 8, runs) for ps, runs in results.items()]
    told, _, why = ps_ratio.verdict(rows).partition(". ")
    assert re.sub(r" workers, \d+\.\d steps/s$", "", told) == f"Best ratio: {best}"
    assert why == sure


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
