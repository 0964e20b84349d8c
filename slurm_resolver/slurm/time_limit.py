"""Reads a time limit and the signal before it, as srun(1) writes them: --time and --signal."""

from __future__ import annotations

import re
import signal
from typing import NamedTuple, Optional, Tuple

from slurm_resolver.errors import LaunchError

_DAYS = re.compile(r"(\d+)-(?:(\d+)(?::(\d+)(?::(\d+))?)?)?")
_CLOCK = re.compile(r"(?:(\d+):)?(\d+):(\d+)|(\d+)")
_UNLIMITED = ("-1", "infinite", "unlimited")
_EXPECTED = (
    "expected minutes, minutes:seconds, hours:minutes:seconds, days-hours, days-hours:minutes or "
    "days-hours:minutes:seconds"
)

# The names that Slurm accepts; it accepts numbers as well.
_SIGNALS = (
    *("HUP", "INT", "QUIT", "ABRT", "KILL", "USR1", "USR2", "ALRM", "TERM", "CONT", "STOP"),
    *("TSTP", "TTIN", "TTOU", "URG", "XCPU", "CHLD", "PIPE"),  # the last two since 24.11
)
_SIGNAL = re.compile(r"(\w+)(?:@(\d*))?")
_DEFAULT_SECONDS, _MAX_SECONDS = 60, 65_535


class LimitSignal(NamedTuple):
    """The number of a signal, and how many seconds before the time limit it is sent."""

    number: signal.Signals
    seconds: int


def parse_time(text: str) -> Optional[int]:
    """Returns the seconds of a time limit; None for no limit (``0``, ``UNLIMITED``).

    Slurm rounds the seconds up to whole minutes; this function does not.

    Raises:
        LaunchError: for a text that Slurm would refuse as well.
    """
    if text.lower() in _UNLIMITED:
        return None
    days = _DAYS.fullmatch(text)
    clock = _CLOCK.fullmatch(text)
    if days is not None:
        day, hours, minutes, seconds = (int(part or 0) for part in days.groups())
        hours += 24 * day
    elif clock is not None:
        hours, minutes, seconds, only_minutes = (int(part or 0) for part in clock.groups())
        minutes += only_minutes
    else:
        raise LaunchError(f"--time {text!r}: {_EXPECTED}")
    return ((hours * 60 + minutes) * 60 + seconds) or None


def parse_signal(text: str) -> LimitSignal:
    """Reads ``USR1@10``: a signal by name or number, and the seconds before the limit (60).

    Raises:
        LaunchError: for any other text. The prefixes R: and B: are for sbatch.
    """
    match = _SIGNAL.fullmatch(text)
    if match is None or int(match[2] or 0) > _MAX_SECONDS:
        raise LaunchError(
            f"--signal {text!r}: expected SIGNAL[@SECONDS], such as USR1@120, with at most "
            f"{_MAX_SECONDS} seconds"
        )
    short_name = re.sub("^SIG", "", match[1].upper())  # USR1, SIGUSR1, usr1 and 10 are the same
    known = {str(int(number)): number for number in signal.Signals}
    known.update({name: signal.Signals[f"SIG{name}"] for name in _SIGNALS})
    if short_name not in known:
        raise LaunchError(
            f"--signal {text!r}: Slurm does not accept the signal {match[1]}; expected a number or "
            f"one of {', '.join(_SIGNALS)}"
        )
    return LimitSignal(known[short_name], int(match[2]) if match[2] else _DEFAULT_SECONDS)


def parse_time_and_signal(
    time_text: Optional[str], signal_text: Optional[str]
) -> Tuple[Optional[int], Optional[LimitSignal]]:
    """Reads both options together.

    Raises:
        LaunchError: as for each alone, and for a signal that would be sent before the tasks start.
    """
    limit = None if time_text is None else parse_time(time_text)
    limit_signal = None if signal_text is None else parse_signal(signal_text)
    if limit is not None and limit_signal is not None and limit_signal.seconds >= limit:
        raise LaunchError(
            f"--signal {signal_text!r} comes {limit_signal.seconds} s before the end, but --time "
            f"{time_text!r} is {limit} s: it would arrive as the tasks start. Give fewer seconds "
            f"({limit_signal.number.name}@{limit // 2}), or a longer time."
        )
    return limit, limit_signal
