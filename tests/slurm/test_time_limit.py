"""Time limits and signals are read as Slurm reads them."""

from __future__ import annotations

import signal

import pytest

from slurm_resolver.errors import LaunchError
from slurm_resolver.slurm.time_limit import parse_signal, parse_time

# The limits in seconds, None for no limit. All values are those of Slurm 26.05.
TIMES: dict[str, int | None] = {
    "1": 60,
    "0:1": 1,
    "1:30": 90,
    "90:90": 5490,
    "1:60": 120,
    "1:00:00": 3600,
    "00:00:01": 1,
    "1-0": 86_400,
    "1-": 86_400,
    "1-30": 194_400,
    "1-2:3": 93_780,
    "1-2:3:4": 93_784,
    **dict.fromkeys(("0", "0:0", "-1", "UNLIMITED", "infinite")),
}
NO_TIMES = [
    "",
    "x",
    "1-2-3",
    "1:2:3:4",
    "1.5",
    "1m",
    "1:",
    "5:",
    "-",
    "1-1:",
    "1:2:",
    "+5",
    "1 ",
]
SIGNALS = [
    "USR1",
    "SIGUSR1",
    "usr1",
    "10",
    "USR1@10",
    "INT@0",
    "STOP",
    "XCPU",
    "CHLD",
]
NO_SIGNALS = [
    "@10",
    "USR1@",
    "USR1@x",
    "0",
    "SIG",
    "SIGSIGUSR1",
    "USIGSR1",
    "NONE",
    "B:USR1",
]


@pytest.mark.parametrize(("text", "seconds"), TIMES.items())
def test_time_limits(text: str, seconds: int | None) -> None:
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
