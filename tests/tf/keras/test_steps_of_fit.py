"""What the steps of `fit` do where they cannot be split, live."""

from __future__ import annotations

import os

import pytest
from folders import quiet_helper
from keras_marks import KERAS_3
from keras_outcomes import SECONDS
from kinds import Completed
from local_run import captured, in_step

pytestmark = KERAS_3

PROGRAM = quiet_helper("steps_of_fit.py")


def run(
    *arguments: str,
    workers: int = 0,
    status: int = 0,
    **variables: str,
) -> Completed:
    """Runs the program alone, or in workers.

    Args:
        status: that it must end with.
        variables: of the environment.
    """
    command = [*PROGRAM, *arguments]
    if workers:
        command = in_step(f"-n {workers} --no-label", *command)
    environment = {
        "PATH": os.environ["PATH"],
        "CUDA_VISIBLE_DEVICES": "",
        **variables,
    }
    return captured(
        command,
        status=status,
        env=environment,
        timeout=SECONDS,
    )


def found(done: Completed) -> list[str]:
    """Returns the lines with results, of all workers."""
    lines = done.stdout.splitlines()
    return sorted(line for line in lines if line.startswith("found"))


def test_fit_equals_one_process() -> None:
    """Each worker has two replicas, and a last batch with fewer rows than there are replicas.

    The kinds are numbers of rows that are unknown when a step is written, a part that XLA compiles
    in one process, and a model from outside the scope. Their first steps are compared as well,
    which finds nothing.
    """
    kinds = ("generator", "unknown", "compiled", "teacher")
    alone = run("nothing", *kinds)
    done = run(
        "nothing",
        *kinds,
        workers=2,
        REPLICAS="2",
        SLURM_RESOLVER_VERIFY="2",
        SLURM_RESOLVER_REPORT="off",
    )
    assert found(done) == sorted(found(alone) * 2)
    assert "slurm_resolver" not in done.stderr


def test_a_wrong_rule_is_found_and_what_it_changes_is_named() -> None:
    done = run("wrong", "arrays", workers=2, status=1, SLURM_RESOLVER_VERIFY="1")
    assert not found(done)
    assert "FitError: SLURM_RESOLVER_VERIFY: the train step of 'functional_1'" in done.stderr
    where = "differs from one process in step 1 of epoch 1, in the variable 'adam/"
    assert where in done.stderr
    assert "_bias_" in done.stderr


@pytest.mark.parametrize("broken", ["rule", "writing"])
def test_an_error_of_the_partition_ends_no_training(broken: str) -> None:
    alone = run(broken, "arrays")
    done = run(broken, "arrays", workers=2)
    assert found(done) == sorted(found(alone) * 2)
    line = "cannot be split: slurm_resolver has failed to split it (ZeroDivisionError: as the"
    assert line in done.stderr
