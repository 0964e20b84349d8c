"""Reads a time limit and the signal before it, as srun(1) writes them: --time and --signal."""

from __future__ import annotations

import operator
import re
import signal

from slurm_resolver.errors import LaunchError

LimitSignal = tuple[signal.Signals, int]  # and how many seconds before the time limit it is sent


def parse_time(text: str) -> int | None:
    """Returns the seconds of a time limit; None for no limit (``0``, ``UNLIMITED``).

    Slurm rounds the seconds up to whole minutes; this function does not.

    Raises:
        LaunchError: for a text that Slurm would refuse as well.
    """
    if text.lower() in ("-1", "infinite", "unlimited"):
        return None
    if not re.fullmatch(r"\d+(:\d+){0,2}|\d+-(\d+(:\d+){0,2})?", text):
        raise LaunchError(
            f"--time {text!r}: expected minutes, minutes:seconds, hours:minutes:seconds, "
            "days-hours, days-hours:minutes or days-hours:minutes:seconds"
        )
    days, dash, clock = text.rpartition("-")
    parts = [int(part or 0) for part in clock.split(":")]
    if not dash and len(parts) < 3:
        parts.insert(0, 0)  # no hours
    # The last parts may be left out.
    return sum(map(operator.mul, [int(days or 0), *parts], (86_400, 3600, 60, 1))) or None


def parse_signal(text: str) -> LimitSignal:
    """Reads ``USR1@10``: a signal by name or number, and the seconds before the limit (60).

    Raises:
        LaunchError: for any other text. The prefixes R: and B: are for sbatch.
    """
    name, at, seconds = text.partition("@")
    # USR1, SIGUSR1, usr1 and 10 are the same.
    name = name.upper().removeprefix("SIG")
    number = next((n for n in signal.Signals if name in (n.name[3:], str(int(n)))), None)
    if number is None or (at and not seconds.isdecimal()):
        raise LaunchError(
            f"--signal {text!r}: expected SIGNAL[@SECONDS] with the name or number of a signal, "
            "such as USR1@120"
        )
    return number, int(seconds or 60)
