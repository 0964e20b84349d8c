"""Slurm's ways to write a time limit and a warning signal (srun's --time and --signal)."""

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

# The names that Slurm takes here; it knows no others, but for numbers.
_SIGNALS = ["HUP", "INT", "QUIT", "ABRT", "KILL", "USR1", "USR2", "ALRM", "TERM", "CONT", "STOP"]
_SIGNALS += ["TSTP", "TTIN", "TTOU", "URG", "XCPU"]
_SIGNAL = re.compile(r"(?:([A-Z]+):)?(\w+)(?:@(\d*))?", re.IGNORECASE)
_DEFAULT_LEAD, _LONGEST_LEAD = 60, 65_535


class Notice(NamedTuple):
    """The signal that announces the time limit, and how many seconds before it."""

    number: signal.Signals
    seconds: int


def parse_time(text: str) -> Optional[int]:
    """Returns the seconds of a time limit; None for no limit (``0``, ``UNLIMITED``).

    Slurm rounds the seconds up to whole minutes; this does not.

    Raises:
        LaunchError: for what Slurm would refuse as well.
    """
    if text.lower() in _UNLIMITED:
        return None
    days = _DAYS.fullmatch(text)
    if days is not None:
        parts = [int(part or 0) for part in days.groups()]
        return (((parts[0] * 24 + parts[1]) * 60 + parts[2]) * 60 + parts[3]) or None
    clock = _CLOCK.fullmatch(text)
    if clock is None:
        raise LaunchError(f"--time {text!r}: {_EXPECTED}")
    hours, minutes, seconds, alone = (int(part or 0) for part in clock.groups())
    return ((hours * 60 + minutes + alone) * 60 + seconds) or None


def parse_notice(text: str) -> Notice:
    """Reads ``USR1@10``: a signal by name or number, and the seconds before the limit (60).

    Raises:
        LaunchError: for what is no such thing, and for the prefixes R: and B:.
    """
    match = _SIGNAL.fullmatch(text)
    if match is None:
        raise LaunchError(f"--signal {text!r}: expected SIGNAL[@SECONDS], such as USR1@120")
    prefix, name, seconds = match.groups()
    if prefix is not None:
        what = {"R": "there are no reservations", "B": "there is no batch shell"}
        reason = "".join(f", and {what[one]} here" for one in prefix.upper() if one in what)
        raise LaunchError(
            f"--signal {text!r}: the prefix {prefix}: cannot be simulated{reason}. Leave it out; "
            "on Slurm give it to sbatch."
        )
    lead = int(seconds) if seconds else _DEFAULT_LEAD
    if lead > _LONGEST_LEAD:
        raise LaunchError(f"--signal {text!r}: expected at most {_LONGEST_LEAD} seconds")
    return Notice(_signal(name, text), lead)


def notice_and_limit(
    time: Optional[str], notice: Optional[str]
) -> Tuple[Optional[int], Optional[Notice]]:
    """Reads both options together.

    Raises:
        LaunchError: as each alone, and where the notice would come before the tasks have started.
    """
    limit = None if time is None else parse_time(time)
    announced = None if notice is None else parse_notice(notice)
    if limit is not None and announced is not None and announced.seconds >= limit:
        raise LaunchError(
            f"--signal {notice!r} comes {announced.seconds} s before the end, but --time {time!r} "
            f"is {limit} s: it would arrive as the tasks start. Give fewer seconds "
            f"({announced.number.name}@{limit // 2}), or a longer time."
        )
    return limit, announced


def _signal(name: str, text: str) -> signal.Signals:
    if name.isdigit():
        try:
            return signal.Signals(int(name))
        except ValueError:
            raise LaunchError(f"--signal {text!r}: {name} is no signal's number") from None
    short = name.upper()
    short = short[3:] if short.startswith("SIG") else short
    if short not in _SIGNALS:
        raise LaunchError(
            f"--signal {text!r}: Slurm takes no signal {name}; expected a number or one of "
            f"{', '.join(_SIGNALS)}"
        )
    return signal.Signals[f"SIG{short}"]
