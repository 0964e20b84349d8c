"""Trainings that go on with another number of workers, by the count of samples."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import List

import pytest
from folders import HELPERS

pytest.importorskip("keras", minversion="3.10", reason="this TensorFlow has Keras 2")

pytestmark = pytest.mark.tensorflow

STARTS = (3, 2, 1, 2)  # so many workers, one start after the other
STEPS = 3  # of each but the last
SAMPLES = 100
# With 4 samples for each worker: 36 samples are 4 batches of 8, and 4 more; 3 steps later, 56 are
# 14 batches of 4; 3 steps later, 68 are 8 of 8, and 4 more.
SAY = (
    "a global batch has {} samples now, and had {} in the checkpoint: "
    "training resumes after step {} of epoch 1; {}"
)
GROWS = [
    SAY.format(8, 12, 4, "4 samples are trained on again"),
    SAY.format(4, 8, 14, "no sample is repeated"),
    SAY.format(8, 4, 8, "4 samples are trained on again"),
]


@pytest.fixture(scope="module")
def out(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("out")
    program = [sys.executable, "-W", "ignore", str(HELPERS / "resumed_elsewhere.py"), str(folder)]
    for place, workers in enumerate(STARTS, 1):
        launcher = [sys.executable, "-m", "slurm_resolver", "run", f"-n{workers}", "--", *program]
        steps = [f"--steps={STEPS}"] if place < len(STARTS) else []
        done = subprocess.run([*launcher, *steps], capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
        assert "retracing" not in done.stderr  # a warning of TensorFlow's, once per save
    return folder


def seen(folder: Path, epoch: int) -> List[int]:
    """The samples that all ranks trained on in an epoch."""
    lines = [line for path in folder.glob("rank.*") for line in path.read_text().splitlines()]
    return sorted(sample for at, took in map(json.loads, lines) if at == epoch for sample in took)


def said(folder: Path) -> List[str]:
    lines = (folder / "log.0").read_text().splitlines()
    return [line for line in lines if "global batch" in line]


@pytest.mark.parametrize("case", ["loop, same", "keras, same"])
def test_with_the_same_global_batch_size_no_sample_is_lost_or_repeated(
    out: Path, case: str
) -> None:
    for epoch in (0, 1):
        assert seen(out / case, epoch) == list(range(SAMPLES))
    assert said(out / case) == []


@pytest.mark.parametrize("case", ["loop, grows", "keras, grows", "keras, arrays, grows"])
def test_with_another_one_it_goes_on_at_the_last_whole_batch(out: Path, case: str) -> None:
    first = seen(out / case, 0)
    assert set(first) == set(range(SAMPLES))
    assert len(first) == SAMPLES + 8
    assert seen(out / case, 1) == list(range(SAMPLES))
    assert said(out / case) == GROWS
