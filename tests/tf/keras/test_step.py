"""What a step of `fit` costs on several workers."""

from __future__ import annotations

import pytest

pytest.importorskip("tensorflow", reason="TensorFlow is not installed")

from folders import quiet_helper
from local_run import run


def test_a_step_takes_two_round_trips_between_the_workers() -> None:
    """One adds up the gradients; the other adds up metrics, and compares the workers."""
    done = run("run", "--no-label", "-n2", "--", *quiet_helper("keras_collectives.py"))
    assert "collectives of a step: 2\n" in done.stdout
