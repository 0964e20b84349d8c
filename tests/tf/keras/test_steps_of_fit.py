"""What the steps of `fit` do where they cannot be split, live."""

from __future__ import annotations

from pathlib import Path

import pytest
from folders import quiet_helper
from keras_marks import KERAS_3
from told_by_workers import lines_told, run

pytestmark = KERAS_3

PROGRAM = quiet_helper("steps_of_fit.py")


def test_fit_equals_one_process(tmp_path: Path) -> None:
    """Each worker has two replicas, and a last batch with fewer rows than there are replicas.

    The kinds are numbers of rows that are unknown when a step is written, a part that XLA compiles
    in one process, and a model from outside the scope. Their first steps are compared as well,
    which finds nothing.
    """
    kinds = ("generator", "unknown", "compiled", "teacher")
    program = [*PROGRAM, "nothing", *kinds]
    alone = run(program, tmp_path, workers=0)
    done = run(
        program,
        tmp_path,
        REPLICAS="2",
        SLURM_RESOLVER_VERIFY="2",
        SLURM_RESOLVER_REPORT="off",
    )
    assert lines_told(done) == sorted(lines_told(alone) * 2)
    assert "slurm_resolver" not in done.stderr


def test_a_wrong_rule_is_found_and_what_it_changes_is_named(tmp_path: Path) -> None:
    program = [*PROGRAM, "wrong", "arrays"]
    done = run(program, tmp_path, status=1, SLURM_RESOLVER_VERIFY="1")
    assert not lines_told(done)
    assert "FitError: SLURM_RESOLVER_VERIFY: the train step of 'functional_1'" in done.stderr
    where = "differs from one process in step 1 of epoch 1, in the variable 'adam/"
    assert where in done.stderr
    assert "_bias_" in done.stderr


@pytest.mark.parametrize("broken", ["rule", "writing"])
def test_an_error_of_the_partition_ends_no_training(broken: str, tmp_path: Path) -> None:
    program = [*PROGRAM, broken, "arrays"]
    alone, done = (run(program, tmp_path, count) for count in (0, 2))
    assert lines_told(done) == sorted(lines_told(alone) * 2)
    line = "cannot be split: slurm_resolver has failed to split it (ZeroDivisionError: as the"
    assert line in done.stderr
