"""Folds host names into Slurm's host lists."""

from __future__ import annotations

import itertools
import re
from typing import Iterable, List, Sequence, Tuple

from slurm_resolver.errors import HostlistError
from slurm_resolver.slurm.hostlist import MAX_DIGITS, MAX_HOSTS_PER_RANGE, SEPARATORS

_MAX_SHOWN = 200  # characters
_NAME = re.compile(rf"([^,{SEPARATORS}\[\]]*?)([0-9]{{0,{MAX_DIGITS}}})")


def compress_hostlist(hosts: Iterable[str]) -> str:
    """Returns a host list in Slurm's folded form that expands to exactly these names.

    >>> compress_hostlist(["n9", "n10", "n11", "m1", "n12"])
    'n[9-11],m1,n12'

    As in Slurm, order and duplicates are kept, only neighbours are folded, and only the number at
    the end of a name is: ``a1.b`` and ``a2.b`` stay as they are.

    Raises:
        HostlistError: (a ValueError) for a name that is empty, or contains a comma, white space or
            a bracket.
    """
    parts: List[str] = []
    by_prefix = itertools.groupby(map(_split, hosts), lambda name: (name[0], name[1] != ""))
    for (prefix, has_number), names in by_prefix:
        ranges = _fold([digits for _, digits in names]) if has_number else []
        if len(ranges) > 1 or any("-" in text for text in ranges):
            parts.append(f"{prefix}[{','.join(ranges)}]")
        else:
            parts += [prefix + text for text in ranges] or [prefix for _ in names]
    return ",".join(parts)


def short_hostlist(hosts: Sequence[str]) -> str:
    """Returns the hosts as messages show them: folded, and cut after 200 characters."""
    text = compress_hostlist(hosts)
    return text if len(text) <= _MAX_SHOWN else f"{text[:_MAX_SHOWN]} …"


def _split(name: str) -> Tuple[str, str]:
    """Returns the text before the number at the end of the name, and the digits of this number."""
    match = _NAME.fullmatch(name)
    if match is None or not name:
        reason = "not a host name; expected text without commas, white space and brackets"
        raise HostlistError(reason, name, name)
    return match[1], match[2]


def _fold(numbers: Sequence[str]) -> List[str]:
    """Returns the numbers and ranges that stand between brackets: ``09``, ``3-5``."""
    ranges: List[List[str]] = []
    for digits in numbers:
        # All numbers of a range have at least as many digits as its first.
        if (
            ranges
            and len(ranges[-1]) < MAX_HOSTS_PER_RANGE
            and digits == str(int(ranges[-1][-1]) + 1).zfill(len(ranges[-1][0]))
        ):
            ranges[-1].append(digits)
        else:
            ranges.append([digits])
    return [one[0] if len(one) == 1 else f"{one[0]}-{one[-1]}" for one in ranges]
