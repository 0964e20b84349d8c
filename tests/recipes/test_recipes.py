"""The scripts that measure, and GPUs that do not work."""

from __future__ import annotations

import re
from pathlib import Path
from typing import List

import pytest
from example_runs import ENVIRONMENT
from folders import EXAMPLES
from slurm_cluster import SlurmCluster


@pytest.mark.nightly
@pytest.mark.tensorflow
@pytest.mark.slurm
@pytest.mark.newest
@pytest.mark.parametrize(
    ("script", "options", "rows"),
    [
        (
            "async_master/ps_ratio.py",
            "--ps 1 2 --repeats 1 --steps 1500 --width 64",
            [["1", "2", "1 : 2"], ["2", "1", "2 : 1"]],
        ),
        (
            "keras_cloud/scaling.py",
            "--epochs 1 --batch-size 8",
            [["1", "1"], ["2", "2"], ["3", "3"]],
        ),
    ],
)
def test_scripts_that_measure_in_an_allocation(
    real_slurm: SlurmCluster, tmp_path: Path, script: str, options: str, rows: List[List[str]]
) -> None:
    command = f"{EXAMPLES / script} --output {tmp_path} {options}"
    allocation = "--quiet -w n9,n10,n11 -N3 --ntasks-per-node=1 --cpus-per-task=2"
    done = real_slurm.run(f"salloc {allocation} python -u {command}", env=ENVIRONMENT, timeout=600)
    name = Path(script).stem
    text = (tmp_path / f"{name}.md").read_text(encoding="utf-8")
    assert done.stdout.endswith(text)
    lines = [line for line in text.splitlines() if line.startswith("|")][2:]
    found = [line.strip("| ").split(" | ") for line in lines]
    assert [row[: len(rows[number])] for number, row in enumerate(found)] == rows
    assert (tmp_path / f"{name}.png").read_bytes().startswith(b"\x89PNG")


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
