"""Expands and folds Slurm's host lists (``n[9-11]``), and expands lists of counts (``2(x3),1``).

The reference is what ``scontrol show hostnames`` prints. A suffix after a bracket
(``n[1-2]-ib0``), which Slurm accepts from 23.11 on, is always accepted here.
"""

from __future__ import annotations

import itertools
import math
import re
from collections.abc import Iterable, Iterator, Sequence

from slurm_resolver.errors import HostlistError, shorten_value

MAX_HOSTS_PER_RANGE = 65_536  # Slurm's own limit
MAX_HOSTS = 2**24  # Slurm has no total limit; a longer list is a mistake or an attack
SEPARATORS = " \t\n,"

_BRACKETS = re.compile(r"\[([^\[\]]*)\]")
_NAME = re.compile(rf"(?:[^\[\]{SEPARATORS}]+|\[[^\[\]]*\])+")
_HOST = re.compile(rf"([^\[\]{SEPARATORS}]*?)([0-9]{{0,18}})")
_RANGE = re.compile(r"([0-9]{1,18})(?:-([0-9]{1,18}))?")
_COUNT = re.compile(r"([0-9]{1,18})(?:\(x(?!0+\))([0-9]{1,18})\))?")  # not 2(x0)


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
    count_hostlist(hostlist)
    hosts = []
    for text in _NAME.findall(hostlist):
        before, *rest = _BRACKETS.split(text)
        names = [before]
        while rest:
            ranges, after, *rest = rest
            ends = [
                str(number).zfill(width) + after
                for numbers, width in _parse_ranges(ranges, hostlist)
                for number in numbers
            ]
            # Slurm's order: the last bracket is the innermost loop; of the brackets before it the
            # rightmost is the outermost loop.
            if rest:
                names = [name + end for end in ends for name in names]
            else:
                names = [name + end for name in names for end in ends]
        hosts += names
    return hosts


def count_hostlist(hostlist: str) -> int:
    """Returns how many hosts a Slurm host list stands for, without building the list.

    >>> count_hostlist("n[1-1000],login[1-2]")
    1002

    Raises:
        HostlistError: as `expand_hostlist`.
    """
    left = _NAME.sub("", hostlist).strip(SEPARATORS)
    if left:
        raise HostlistError("a bracket that is not closed, or not opened", hostlist, left[0])
    count = 0
    for name in _NAME.findall(hostlist):
        counts = (
            sum(len(numbers) for numbers, _ in _parse_ranges(ranges, hostlist))
            for ranges in _BRACKETS.findall(name)
        )
        count += math.prod(counts)
    if count > MAX_HOSTS:
        raise HostlistError(f"more than {MAX_HOSTS:,} hosts, the limit", hostlist, hostlist)
    return count


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


def _parse_ranges(text: str, hostlist: str) -> Iterator[tuple[range, int]]:
    """Yields the numbers of a bracket, ``1,3-5``, and their digits. `hostlist` is for messages."""
    for item in text.split(","):
        match = _RANGE.fullmatch(item)
        numbers = range(int(match[1]), int(match[2] or match[1]) + 1) if match else range(0)
        if not match or not 1 <= len(numbers) <= MAX_HOSTS_PER_RANGE:
            raise HostlistError(
                "expected numbers or ranges such as [1,3-5]; a range begins with its lower number, "
                f"and has at most {MAX_HOSTS_PER_RANGE:,} hosts",
                hostlist,
                f"[{text}]",
            )
        yield numbers, len(match[1])


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
    runs: list[list[str]] = []  # a text, and the first and last number that follow it
    for host in hosts:
        match = _HOST.fullmatch(host)
        if not host or not match:
            reason = "not a host name; expected text without commas, white space and brackets"
            raise HostlistError(reason, host, host)
        text, digits = match.groups()
        before, first, last = runs[-1] if runs else ("", "", "")
        if (
            (digits and last and text == before)
            and digits == str(int(last) + 1).zfill(len(first))
            and int(digits) < int(first) + MAX_HOSTS_PER_RANGE
        ):
            runs[-1][2] = digits
        else:
            runs.append([text, digits, digits])
    parts = []
    by_text = itertools.groupby(runs, lambda run: (run[0], run[1] != ""))
    for (text, has_number), group in by_text:
        if has_number:
            numbers = ",".join("-".join(dict.fromkeys(run[1:])) for run in group)
            parts.append(text + (numbers if numbers.isdigit() else f"[{numbers}]"))
        else:
            parts += [text for _ in group]
    return ",".join(parts)


def short_hostlist(hosts: Sequence[str]) -> str:
    """Returns the hosts as messages show them: folded, and only the two ends of a long list."""
    return shorten_value(compress_hostlist(hosts))
