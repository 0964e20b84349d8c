"""Trainings that Keras' BackupAndRestore resumes end as in one process."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from folders import quiet_helper
from keras_marks import KERAS_3
from keras_outcomes import outcomes
from kinds import Records
from told_by_workers import run

pytestmark = KERAS_3

PROGRAM = quiet_helper("keras_backup.py")
FILES = ["latest.weights.h5", "training_metadata.json"]


def start(folder: Path, count: int, kind: str) -> Records:
    """Runs the program with several workers, and returns what each has written."""
    run([*PROGRAM, kind], folder, count)
    return outcomes(folder, [f"{kind}-{index}" for index in range(count)])


def assert_close(found: list[Any], expected: list[Any]) -> None:
    """Compares arrays pair by pair, within what a sum over workers rounds."""
    assert len(found) == len(expected)
    for one, other in zip(found, expected):
        np.testing.assert_allclose(one, other, atol=1e-5)


def test_a_training_that_was_broken_off_ends_as_in_one_process(tmp_path: Path) -> None:
    workers = start(tmp_path, 2, "stories")
    for name, alone in workers[0].pop("alone").items():
        for found in (worker[name] for worker in workers):
            assert_close(found["weights"], alone["weights"])
            assert_close(found["logged"], alone["logged"])
            assert found["epochs"] == alone["epochs"]
            assert found["left"] == alone["left"]
            assert [file for file in found["left"] if not file.endswith(".bkp")] == FILES
            kept = FILES if name == "batches" else []  # with delete_checkpoint=False
            assert sorted(path.name for path in (tmp_path / name).glob("*")) == kept


@pytest.mark.parametrize("count", [3, pytest.param(1, marks=pytest.mark.nightly)])
def test_another_number_of_workers_ends_a_killed_training(tmp_path: Path, count: int) -> None:
    assert run([*PROGRAM, "broken off"], tmp_path, status=None).returncode
    for worker in start(tmp_path, count, "resumed"):
        assert worker["epochs"] == [2, 3]
        assert_close(worker["weights"], worker["uninterrupted"])
    assert not (tmp_path / "backup").exists()
