"""Folds host names into Slurm's host lists, and sorts them with their numbers in numeric order."""

from __future__ import annotations

import itertools
import re
from typing import Dict, Iterable, Iterator, List, NamedTuple, Sequence, Tuple

from slurm_resolver.errors import HostlistError
from slurm_resolver.slurm.hostlist import MAX_DIGITS, MAX_HOSTS_PER_RANGE, SEPARATORS

_MAX_SHOWN = 200  # characters
_DIGITS = "0123456789"
_NUMBER_AND_TEXT = re.compile(r"([0-9]*)([^0-9]*)")
_NOT_IN_A_NAME = re.compile(rf"[,{SEPARATORS}\[\]]")


class _Run(NamedTuple):
    """Neighbours with the same prefix whose numbers count up by one: ``n9``, ``n10``, ``n11``.

    `first` and `last` are the digits as they are written. A name that does not end in a number is
    a run by itself, with the whole name as its prefix and no digits.
    """

    prefix: str
    first: str
    last: str


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
    for (prefix, has_number), runs in itertools.groupby(_find_runs(hosts), _bracket_of):
        if not has_number:
            parts += [run.prefix for run in runs]
            continue
        ranges = [run.first if run.first == run.last else f"{run.first}-{run.last}" for run in runs]
        if len(ranges) == 1 and "-" not in ranges[0]:
            parts.append(prefix + ranges[0])
        else:
            parts.append(f"{prefix}[{','.join(ranges)}]")
    return ",".join(parts)


def short_hostlist(hosts: Sequence[str]) -> str:
    """Returns the hosts as messages show them: folded, and cut after 200 characters."""
    text = compress_hostlist(hosts)
    return text if len(text) <= _MAX_SHOWN else f"{text[:_MAX_SHOWN]} …"


def sort_hosts(hosts: Iterable[str]) -> List[str]:
    """Returns the names sorted, with their numbers in numeric order wherever they are in the name.

    >>> sort_hosts(["n10", "n9", "rack10-n1", "rack2-n3", "n09"])
    ['n09', 'n9', 'n10', 'rack2-n3', 'rack10-n1']

    Names that differ in nothing but the number at their end follow each other, so that they fold.
    Names with equal numbers, as n9 and n09, are in the order of their text.
    """
    by_prefix: Dict[str, List[str]] = {}
    for name in hosts:
        by_prefix.setdefault(name.rstrip(_DIGITS), []).append(name)
    names: List[str] = []
    for prefix in sorted(by_prefix, key=_prefix_order):
        names += sorted(by_prefix[prefix], key=_name_order)
    return names


def _find_runs(hosts: Iterable[str]) -> Iterator[_Run]:
    prefix = first = last = ""
    next_digits = ""  # the number that continues the run; none is as long as there are no digits
    size = 0
    for name in hosts:
        if not name or _NOT_IN_A_NAME.search(name):
            reason = "not a host name; expected text without commas, white space and brackets"
            raise HostlistError(reason, name, name)
        name_prefix, digits = _split(name)
        continues = digits and digits == next_digits and name_prefix == prefix
        if continues and size < MAX_HOSTS_PER_RANGE:
            last = digits
            size += 1
        else:
            if size:
                yield _Run(prefix, first, last)
            prefix, first, last, size = name_prefix, digits, digits, 1
        # All numbers of a range have at least as many digits as its first.
        next_digits = str(int(digits) + 1).zfill(len(first)) if digits else ""
    if size:
        yield _Run(prefix, first, last)


def _bracket_of(run: _Run) -> Tuple[str, bool]:
    """Returns the prefix, and whether the name has a number: alike in runs that share a bracket."""
    return run.prefix, run.first != ""


def _split(name: str) -> Tuple[str, str]:
    """Returns the text before the number at the end of the name, and the digits of this number."""
    prefix = name.rstrip(_DIGITS)
    if len(name) - len(prefix) > MAX_DIGITS:
        prefix = name[:-MAX_DIGITS]
    return prefix, name[len(prefix) :]


def _name_order(name: str) -> Tuple[int, str]:
    """Orders names with the same prefix; the one without a number comes first."""
    return _to_number(name[len(name.rstrip(_DIGITS)) :]), name


def _prefix_order(prefix: str) -> Tuple[List[Tuple[int, str]], str]:
    """Orders prefixes such as ``rack10-n`` by their numbers and the texts between these."""
    parts = _NUMBER_AND_TEXT.findall(prefix)
    return [(_to_number(number), text) for number, text in parts], prefix


def _to_number(digits: str) -> int:
    return int(digits[-MAX_DIGITS:]) if digits else -1
