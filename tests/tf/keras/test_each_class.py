"""Each loss, metric and optimizer of Keras gives the same in two workers as in one process."""

from __future__ import annotations

from pathlib import Path

import pytest
from keras_marks import KERAS_3
from keras_outcomes import PROGRAM, faults, outcomes, run_alone
from told_by_workers import run

pytestmark = [KERAS_3, pytest.mark.nightly]


def test_each_class_of_keras_gives_what_one_process_gives(tmp_path: Path) -> None:
    alone = run_alone(tmp_path / "alone", ["each_*"])
    run([*PROGRAM, "each_*"], tmp_path / "workers", status=None)
    workers = outcomes(tmp_path / "workers", ["0", "1"])
    found = {name: faults(name, workers, alone) for name in alone}
    assert {name: fault for name, fault in found.items() if fault} == {}
    assert len(alone) > 70
