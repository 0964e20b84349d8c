"""Trainings that go on with another number of workers: no sample is lost or seen twice."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any, Dict, List

import pytest
from folders import HELPERS

pytest.importorskip("keras", minversion="3.10", reason="this TensorFlow has Keras 2")

import numpy as np

pytestmark = pytest.mark.tensorflow

STARTS = (3, 2, 1, 2)  # so many workers, one start after the other
STEPS = 3  # of each but the last
SAMPLES = 100

# By what is kept: what the second, third and fourth start say.
SAY = "on {} the global batch size {} (keep_batch_size={!r}); the epoch goes on at step {}, "
GLOBAL = [
    SAY.format(on, f"stays 12, a replica's is {each}", "global", step)
    for on, each, step in (
        ("2 replicas instead of 3", "6 instead of 4", 3),
        ("1 replica instead of 2", "12 instead of 6", 6),
        ("2 replicas instead of 1", "6 instead of 12", 9),  # at the end of the epoch
    )
]
# 36 samples are 4 batches of 8, and 4 more; 60 are 15 of 4; 72 are 9 of 8
PER_REPLICA = [
    SAY.format(on, f"is {size}, a replica's stays 4", "per_replica", step)
    for on, size, step in (
        ("2 replicas instead of 3", "8 instead of 12", "{}"),
        ("1 replica instead of 2", "4 instead of 8", 15),
        ("2 replicas instead of 1", "8 instead of 4", 9),
    )
]
EXACT = "and no sample is lost or seen twice"


@pytest.fixture(scope="module")
def out(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("out")
    program = [sys.executable, "-W", "ignore", str(HELPERS / "resumed_elsewhere.py"), str(folder)]
    for place, workers in enumerate(STARTS, 1):
        launcher = [sys.executable, "-m", "slurm_resolver", "run", f"-n{workers}", "--", *program]
        steps = [f"--steps={STEPS}"] if place < len(STARTS) else []
        done = subprocess.run([*launcher, *steps], capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
    return folder


def told(folder: Path) -> List[Dict[str, Any]]:
    """What all ranks took, in one list."""
    assert not list(folder.glob("error.*")), [path.read_text() for path in folder.glob("error.*")]
    texts = [path.read_text() for path in sorted(folder.glob("rank.*"))]
    return [json.loads(line) for text in texts for line in text.splitlines()]


def said(folder: Path) -> List[str]:
    lines = (folder / "log.0").read_text().splitlines()
    return [line for line in lines if "keep_batch_size" in line]


FINITE = [
    "loop, global",
    "loop, per replica",
    "keras, global",
    "keras, per replica",
    "keras, arrays, per replica",
]


@pytest.mark.parametrize("case", FINITE)
def test_the_workers_take_each_sample_once_in_an_epoch(out: Path, case: str) -> None:
    took = told(out / case)
    for epoch in (0, 1):
        seen = [sample for step in took if step["epoch"] == epoch for sample in step["took"]]
        assert sorted(seen) == list(range(SAMPLES)), (case, epoch)
    for on in STARTS[:2]:  # which shared out full batches, all of them evenly
        parts = [len(step["took"]) for step in took if step["on"] == on and step["epoch"] == 0]
        assert set(parts[: on * STEPS]) == {max(parts)}, (case, on)


@pytest.mark.parametrize("case", [case for case in FINITE if case.endswith("global")])
def test_with_the_global_batch_size_kept_the_training_is_the_same(out: Path, case: str) -> None:
    """But for the order in which the parts of a batch are added up."""
    assert said(out / case) == [line + EXACT for line in GLOBAL]
    results = [json.loads((out / at / case / "result.0").read_text()) for at in ("", "whole")]
    for resumed, whole in zip(*results):
        np.testing.assert_allclose(resumed, whole, rtol=1e-4)


@pytest.mark.parametrize("case", [case for case in FINITE if case.endswith("per replica")])
def test_with_that_of_a_replica_kept_it_goes_on_by_samples(out: Path, case: str) -> None:
    """100 samples are 13 steps of 8; the 64 that are left after 36 of them are 8 steps."""
    expected = [text.format(5) + EXACT for text in PER_REPLICA]
    assert said(out / case) == expected


def test_data_without_an_end_go_on_as_one_stream(out: Path) -> None:
    took = [sample for step in told(out / "keras, endless, per replica") for sample in step["took"]]
    assert sorted(took) == sorted(at % SAMPLES for at in range(len(took)))
    assert len(took) > 150
    assert said(out / "keras, endless, per replica")[0] == PER_REPLICA[0].format(4) + EXACT


def test_an_iterator_tells_nothing_of_its_batches(out: Path) -> None:
    """They come in the right order all the same, where the program keeps their size."""
    lines = said(out / "loop, endless")
    assert len(lines) == 3
    for line in lines:
        assert "the global batch size is taken for the same (keep_batch_size='global')" in line
        assert "Samples may be lost or seen twice in it: an iterator does not tell" in line
    took = [sample for step in told(out / "loop, endless") for sample in step["took"]]
    assert sorted(took) == sorted(at % SAMPLES for at in range(len(took)))
