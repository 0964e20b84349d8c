"""Host names folded into Slurm's host lists, and sorted as people count: names in, text out.

A million names are folded in about half a second, so that what could be said letter by letter is
said by methods of whole lists and texts.
"""

from __future__ import annotations

import itertools
import operator
import re
from typing import Iterable, Iterator, List, Optional, Sequence, Tuple

from slurm_resolver.errors import HostlistError
from slurm_resolver.slurm.hostlist import MAX_DIGITS, MAX_HOSTS_A_RANGE, SEPARATORS

_SHOWN = 200  # characters
_NUMBERS = re.compile(r"([0-9]*)([^0-9]*)")
_TRAILING_NUMBER = re.compile(r"[0-9]{1,18}\Z")
_DIGITS = "0123456789"
_NO_DIGITS = dict.fromkeys(map(ord, _DIGITS))  # for str.translate
# The step from 9 to 10, 99 to 100, … and the number before it, as `_numbers` writes them.
_ONE_DIGIT_MORE = {9 * 10**digits + 1: 2 * 10**digits - 1 for digits in range(1, MAX_DIGITS)}


def compress_hostlist(hosts: Iterable[str]) -> str:
    """Returns a host list in Slurm's folded form that expands to exactly these names.

    >>> compress_hostlist(["n9", "n10", "n11", "m1", "n12"])
    'n[9-11],m1,n12'

    As in Slurm, order and duplicates are kept, only neighbours are folded, and only the number at
    the end of a name is: ``a1.b`` and ``a2.b`` stay as they are.

    Raises:
        HostlistError: (a ValueError) for a name that no host list can hold: an empty one, or one
            with a comma, white space or a bracket.
    """
    names = list(hosts)
    if not names:
        return ""
    _check_names(names)
    parts: List[str] = []
    for prefix, same, numbers in _by_prefix(names):
        if numbers is None or len(same) == 1:
            parts += same
        else:
            parts.append(f"{prefix}[{','.join(_fold(prefix, same, numbers))}]")
    return ",".join(parts)


def short_hostlist(hosts: Sequence[str]) -> str:
    """Returns the hosts as messages show them: folded, and the end left out if it is long."""
    text = compress_hostlist(hosts)
    return text if len(text) <= _SHOWN else f"{text[:_SHOWN]} …"


def sort_hosts(hosts: Iterable[str]) -> List[str]:
    """Returns the names with their numbers in numeric order, wherever in the name they stand.

    >>> sort_hosts(["n10", "n9", "rack10-n1", "rack2-n3", "n09"])
    ['n09', 'n9', 'n10', 'rack2-n3', 'rack10-n1']

    Names that read the same, as n9 and n09, are in the order of their text.
    """
    names = sorted(hosts)  # the next sorts keep this order where they see no difference
    names.sort(key=_last_number)
    prefixes = set(map(str.rstrip, names, itertools.repeat(_DIGITS)))
    order = {prefix: i for i, prefix in enumerate(sorted(prefixes, key=_natural))}
    names.sort(key=lambda name: order[name.rstrip(_DIGITS)])
    return names


def _check_names(names: List[str]) -> None:
    text = ",".join(names)
    if (
        text.count(",") >= len(names)
        or not all(names)
        or any(unreadable in text for unreadable in f"{SEPARATORS}[]")
    ):
        bad = next(name for name in names if not name or set(name) & set(f",{SEPARATORS}[]"))
        raise HostlistError("no name that a host list can hold", bad, bad)


def _last_number(name: str) -> int:
    number = name[len(name.rstrip(_DIGITS)) :]
    return int(number[-MAX_DIGITS:] or -1)


def _natural(text: str) -> List[Tuple[int, str]]:
    """``rack10-n`` as numbers and the texts behind them; there may be no number."""
    return [(int(number[-MAX_DIGITS:] or -1), rest) for number, rest in _NUMBERS.findall(text)]


def _by_prefix(names: List[str]) -> Iterator[Tuple[str, List[str], Optional[List[int]]]]:
    """Yields neighbours that differ only in the number at their end, with their `_numbers`.

    Names that end in no number come with None.
    """
    prefix = names[0].rstrip(_DIGITS)
    if names[-1].rstrip(_DIGITS) == prefix:  # most lists have only one, which is quickly found out
        numbers = _numbers(prefix, names)
        if numbers:
            yield prefix, names, numbers
            return
    prefixes = list(map(str.rstrip, names, itertools.repeat(_DIGITS)))
    changes = map(operator.ne, prefixes, itertools.islice(prefixes, 1, None))
    ends = [*itertools.compress(itertools.count(1), changes), len(names)]
    for start, end in zip([0, *ends], ends):
        same = names[start:end]
        numbers = _numbers(prefixes[start], same) if end - start > 1 else None
        if numbers or end - start == 1:
            yield prefixes[start], same, numbers
            continue
        # One has no number, or more digits than a number may have: the first are text then.
        for (prefix, _), group in itertools.groupby(same, _split):
            same = list(group)
            yield prefix, same, _numbers(prefix, same)


def _split(name: str) -> Tuple[str, bool]:
    """Returns the text before the number, and whether there is a number."""
    match = _TRAILING_NUMBER.search(name)
    return (name[: match.start()], True) if match else (name, False)


def _numbers(prefix: str, names: List[str]) -> Optional[List[int]]:
    """Returns the numbers after this prefix, each with a digit 1 before it.

    It makes ``08`` 108, so that a number's width is kept. None where one of the names is not the
    prefix and a number.
    """
    from json import loads  # the quickest that Python has to read many numbers

    if max(map(len, names)) > len(prefix) + MAX_DIGITS:
        return None
    text = f",{','.join(names)}".replace(f",{prefix}", ",\n1")
    if text.translate(_NO_DIGITS) != ",\n" * len(names):
        return None
    numbers: List[int] = loads(f"[{text[1:]}]")
    return None if 1 in numbers else numbers


def _fold(prefix: str, names: List[str], numbers: List[int]) -> List[str]:
    """Returns runs (``9-11``) and single numbers; a run is as wide as its first number."""
    steps = map(operator.sub, itertools.islice(numbers, 1, None), numbers)
    ends = [
        i
        for i, step in enumerate(steps, 1)
        if step != 1 and _ONE_DIGIT_MORE.get(step) != numbers[i - 1]
    ]
    ends.append(len(numbers))
    if max(map(operator.sub, ends, [0, *ends])) > MAX_HOSTS_A_RANGE:
        ends = [
            cut
            for start, end in zip([0, *ends], ends)
            for cut in (*range(start + MAX_HOSTS_A_RANGE, end, MAX_HOSTS_A_RANGE), end)
        ]
    digits = len(prefix)
    return [
        names[start][digits:]
        if end - start == 1
        else f"{names[start][digits:]}-{names[end - 1][digits:]}"
        for start, end in zip([0, *ends], ends)
    ]
