"""What a step of `fit` costs on several workers."""

from __future__ import annotations

from folders import quiet_helper
from local_run import captured, in_step


def test_a_step_takes_two_round_trips_between_the_workers() -> None:
    """One adds up the gradients; the other adds up metrics, and compares the workers."""
    done = captured(in_step("--no-label -n2", *quiet_helper("keras_collectives.py")), status=0)
    assert "collectives of a step: 2\n" in done.stdout
