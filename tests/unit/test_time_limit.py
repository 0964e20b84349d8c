"""Time limits and signals, read as Slurm reads them."""

from __future__ import annotations

import signal
from typing import Optional

import pytest
from time_limits import NO_SIGNALS, NO_TIMES, SIGNALS, TIMES

from slurm_resolver.errors import LaunchError
from slurm_resolver.slurm.time_limit import parse_signal, parse_time


@pytest.mark.parametrize(("text", "seconds"), TIMES.items())
def test_time_limits(text: str, seconds: Optional[int]) -> None:
    assert parse_time(text) == seconds


@pytest.mark.parametrize("text", NO_TIMES)
def test_no_time_limits(text: str) -> None:
    with pytest.raises(LaunchError, match="expected minutes, minutes:seconds"):
        parse_time(text)


def test_signals() -> None:
    assert parse_signal("usr1") == (signal.SIGUSR1, 60)
    assert parse_signal("SIGUSR2@5") == (signal.SIGUSR2, 5)
    assert parse_signal("12@0") == (signal.SIGUSR2, 0)
    for text in SIGNALS:
        parse_signal(text)
    for text in NO_SIGNALS:
        with pytest.raises(LaunchError, match="--signal"):
            parse_signal(text)
