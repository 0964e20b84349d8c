"""Expands and folds Slurm's host lists (``n[9-11]``), and expands lists of counts (``2(x3),1``).

The reference is what ``scontrol show hostnames`` prints. A suffix after a bracket
(``n[1-2]-ib0``), which Slurm accepts from 23.11 on, is always accepted here.
"""

from __future__ import annotations

import itertools
import math
import re
from collections.abc import Iterable, Sequence

from slurm_resolver.errors import HostlistError, shorten_value

MAX_HOSTS_PER_RANGE = 65_536  # Slurm's own limit
MAX_HOSTS = 2**24  # Slurm has no total limit; a longer list is a mistake or an attack
SEPARATORS = " \t\n,"

_BRACKETS = re.compile(r"\[([^\[\]]*)\]")
_NAME = re.compile(rf"(?:[^\[\]{SEPARATORS}]+|\[[^\[\]]*\])+")
_RANGE = re.compile(r"([0-9]{1,18})(?:-([0-9]{1,18}))?")
_HOST = re.compile(rf"([^\[\]{SEPARATORS}]*?)([0-9]{{0,18}})")
_COUNT = re.compile(r"([0-9]{1,18})(?:\(x(?!0+\))([0-9]{1,18})\))?")  # not 2(x0)

# The ranges of a bracket, ``[07,9-11]``: the numbers of each, and the digits that it pads them to.
Ranges = list[tuple[range, int]]
_Name = tuple[list[str], list[Ranges]]  # the texts around the brackets of a name, and the brackets


def expand_hostlist(hostlist: str) -> list[str]:
    """Returns the host names that a Slurm host list stands for, in its order, duplicates kept.

    >>> expand_hostlist("n[9-10],login")
    ['n9', 'n10', 'login']
    >>> expand_hostlist("rack[0-1]node[01-02]")
    ['rack0node01', 'rack0node02', 'rack1node01', 'rack1node02']

    Commas and white space separate names; an empty text is an empty list. All numbers of a range
    have at least as many digits as its first: ``[08-11]`` is 08, 09, 10, 11.

    Raises:
        HostlistError: (a ValueError) for a bracket that is not closed, an empty or backward range,
            anything but digits in a range, more than 65,536 hosts in a range or 2**24 in all. It
            is raised before the list is built, so that a hostile text costs no memory.
    """
    return [host for name in _parse(hostlist) for host in _expand_name(*name)]


def count_hostlist(hostlist: str) -> int:
    """Returns how many hosts a Slurm host list stands for, without building the list.

    >>> count_hostlist("n[1-1000],login[1-2]")
    1002

    Raises:
        HostlistError: as `expand_hostlist`.
    """
    return _count_hosts(_parse(hostlist))


def expand_tasks_per_node(tasks_per_node: str) -> list[int]:
    """Returns the counts that ``SLURM_STEP_TASKS_PER_NODE`` stands for, one for each node.

    >>> expand_tasks_per_node("2(x3),1")
    [2, 2, 2, 1]

    Raises:
        HostlistError: (a ValueError) for anything but ``N`` and ``N(xREPETITIONS)`` separated by
            commas, or more than 2**24 counts.
    """
    counts: list[int] = []
    for part in tasks_per_node.split(","):
        match = _COUNT.fullmatch(part)
        repetitions = int(match[2] or 1) if match else 0
        if not match or len(counts) + repetitions > MAX_HOSTS:
            raise HostlistError(
                f"expected a count such as 2 or 2(x3), and not more than {MAX_HOSTS:,} in all",
                tasks_per_node,
                part,
            )
        counts += [int(match[1])] * repetitions
    return counts


def _parse(hostlist: str) -> list[_Name]:
    names = []
    for text in _NAME.findall(hostlist):
        parts = _BRACKETS.split(text)  # every second part was in brackets
        brackets = [parse_ranges(part, hostlist, f"[{part}]") for part in parts[1::2]]
        names.append((parts[::2], brackets))
    left = _NAME.sub("", hostlist).strip(SEPARATORS)
    if left:
        raise HostlistError("a bracket that is not closed, or not opened", hostlist, left[0])
    if _count_hosts(names) > MAX_HOSTS:
        raise HostlistError(
            f"stands for more than {MAX_HOSTS:,} hosts, the limit", hostlist, hostlist
        )
    return names


def parse_ranges(text: str, expression: str, part: str) -> Ranges:
    """Reads what stands in a bracket: ``1,3-5``. `expression` and `part` are for messages."""
    ranges = []
    for item in text.split(","):
        match = _RANGE.fullmatch(item)
        numbers = range(int(match[1]), int(match[2] or match[1]) + 1) if match else range(0)
        if not match or not 1 <= len(numbers) <= MAX_HOSTS_PER_RANGE:
            raise HostlistError(
                f"expected numbers or ranges such as [1,3-5], not {item[:40]!r}; a range begins "
                f"with its lower number, and has at most {MAX_HOSTS_PER_RANGE:,} hosts",
                expression,
                part,
            )
        ranges.append((numbers, len(match[1])))
    return ranges


def _count_hosts(names: Iterable[_Name]) -> int:
    return sum(
        math.prod(sum(len(numbers) for numbers, _ in ranges) for ranges in brackets)
        for _, brackets in names
    )


def _expand_name(texts: list[str], brackets: Sequence[Ranges]) -> list[str]:
    names = texts[:1]
    for position, ranges in enumerate(brackets, 1):
        after = texts[position]
        ends = [str(number).zfill(width) + after for numbers, width in ranges for number in numbers]
        # Slurm's order: the last bracket is the innermost loop; of the brackets before it the
        # rightmost is the outermost loop.
        if position == len(brackets):
            names = [name + end for name in names for end in ends]
        else:
            names = [name + end for end in ends for name in names]
    return names


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
    parts = []
    by_prefix = itertools.groupby(map(_split_number, hosts), lambda name: (name[0], name[1] != ""))
    for (prefix, has_number), names in by_prefix:
        if has_number:
            numbers = ",".join(_fold(digits for _, digits in names))
            parts.append(prefix + (numbers if numbers.isdigit() else f"[{numbers}]"))
        else:
            parts += [prefix for _ in names]
    return ",".join(parts)


def _fold(numbers: Iterable[str]) -> list[str]:
    """Returns the numbers and ranges that stand for these, in their order.

    >>> _fold(["09", "10", "3", "4", "5"])
    ['09-10', '3-5']
    """
    ranges = []
    last: list[str] = []  # the newest range
    for digits in numbers:
        follows = last and digits == str(int(last[-1]) + 1).zfill(len(last[0]))
        if follows and len(last) < MAX_HOSTS_PER_RANGE:
            last.append(digits)
        else:
            last = [digits]
            ranges.append(last)
    return ["-".join(dict.fromkeys((run[0], run[-1]))) for run in ranges]


def short_hostlist(hosts: Sequence[str]) -> str:
    """Returns the hosts as messages show them: folded, and only the two ends of a long list."""
    return shorten_value(compress_hostlist(hosts))


def _split_number(name: str) -> tuple[str, str]:
    """Returns the name without the number at its end, and the digits of this number."""
    match = _HOST.fullmatch(name)
    if not match or not name:
        raise HostlistError(
            "not a host name; expected text without commas, white space and brackets", name, name
        )
    return match[1], match[2]
