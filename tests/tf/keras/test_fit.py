"""Keras 3 gives the same results in two workers as in one process.

KERAS_PROGRAMS selects programs of tests/helpers/keras_programs, for example "loss_*".
"""

from __future__ import annotations

import pytest
from keras_marks import KERAS_3, VERSION
from keras_outcomes import (
    PROGRAM,
    Outcomes,
    faults,
    outcomes,
    run_alone,
    selected,
)
from told_by_workers import run

pytestmark = KERAS_3

NAMES = [] if VERSION.startswith("2.") else selected(["*"])


@pytest.fixture(scope="module")
def alone(tmp_path_factory: pytest.TempPathFactory) -> Outcomes:
    return run_alone(tmp_path_factory.mktemp("alone"), NAMES)


@pytest.fixture(scope="module")
def workers(tmp_path_factory: pytest.TempPathFactory) -> list[Outcomes]:
    """What came of all programs, by worker, also if the run ends early."""
    folder = tmp_path_factory.mktemp("workers")
    done = run([*PROGRAM, *NAMES], folder, status=None)
    print(done.stderr)
    return outcomes(folder, ["0", "1"])


@pytest.mark.parametrize("name", NAMES)
def test_a_program_gives_what_one_process_gives(
    name: str, alone: Outcomes, workers: list[Outcomes]
) -> None:
    assert faults(name, workers, alone) == {}
