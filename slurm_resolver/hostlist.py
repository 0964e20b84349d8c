"""The grammar of Slurm's host lists and counts: text in, lists out, nothing about tasks.

The reference is ``scontrol show hostnames``; the one extension is a suffix after a bracket
(``n[1-2]-ib0``), which Slurm itself accepts from 23.11 on.
"""

from __future__ import annotations

import itertools
import re
from typing import Iterable, Iterator, List, NamedTuple, Tuple, Union

from slurm_resolver.errors import HostlistError

MAX_HOSTS_A_RANGE = 65_536  # Slurm's own limit
MAX_HOSTS = 2**24  # Slurm has no total limit; a longer list is a mistake or an attack

_PIECES = re.compile(r"[^, \t\n\[\]]+|\[[^\[\]]*\]|[, \t\n]+|[\[\]]")
_RANGE = re.compile(r"([0-9]{1,18})(?:-([0-9]{1,18}))?")  # no node number has more digits
_COUNT = re.compile(r"([0-9]{1,18})(?:\(x([0-9]{1,18})\))?")
_TRAILING_NUMBER = re.compile(r"[0-9]{1,18}\Z")
_UNREADABLE = re.compile(r"[, \t\n\[\]]")


class _Range(NamedTuple):
    first: int
    last: int
    width: int

    def texts(self) -> Iterator[str]:
        numbers = map(str, range(self.first, self.last + 1))
        return (n.zfill(self.width) for n in numbers) if self.width > 1 else iter(numbers)


_Group = List[_Range]
_Name = List[Union[str, _Group]]  # plain text and bracket groups, in turn


def expand_hostlist(hostlist: str) -> List[str]:
    """Returns the host names that a Slurm host list stands for, in its order, duplicates kept.

    >>> expand_hostlist("n[9-10],login")
    ['n9', 'n10', 'login']
    >>> expand_hostlist("rack[0-1]node[01-02]")
    ['rack0node01', 'rack0node02', 'rack1node01', 'rack1node02']

    Commas and white space separate; an empty text is an empty list. A range is as wide as its
    first number is written: ``[08-11]`` is 08, 09, 10, 11.

    Raises:
        HostlistError: (a ValueError) for a bracket that is not closed, an empty or backward range,
            anything but digits in a range, more than 65,536 hosts a range or 2**24 in all. It is
            raised before the list is built, so that a hostile one costs no memory.
    """
    return list(itertools.chain.from_iterable(map(_hosts, _parse(hostlist))))


def count_hostlist(hostlist: str) -> int:
    """Returns how many hosts a Slurm host list stands for, without building the list.

    >>> count_hostlist("n[1-1000],login[1-2]")
    1002

    Raises:
        HostlistError: as `expand_hostlist`.
    """
    return sum(map(_size, _parse(hostlist)))


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
    parts: List[str] = []
    for (prefix, numbered), names in itertools.groupby(map(_split_number, hosts), key=_fold_key):
        numbers = [number for _, number in names]
        if not numbered:  # nothing to fold: repeat the name as often as it came
            parts += [prefix] * len(numbers)
        elif len(numbers) == 1:
            parts.append(prefix + numbers[0])
        else:
            parts.append(f"{prefix}[{','.join(_fold(numbers))}]")
    return ",".join(parts)


def expand_tasks_per_node(tasks_per_node: str) -> List[int]:
    """Returns the counts that ``SLURM_STEP_TASKS_PER_NODE`` stands for, one a node.

    >>> expand_tasks_per_node("2(x3),1")
    [2, 2, 2, 1]

    Raises:
        HostlistError: (a ValueError) for anything but ``N`` and ``N(xREPETITIONS)`` separated by
            commas, or more than 2**24 counts.
    """
    runs: List[Tuple[int, int]] = []
    total = 0
    for part in tasks_per_node.split(","):
        match = _COUNT.fullmatch(part)
        if match is None:
            raise HostlistError("expected a count such as 2 or 2(x3)", tasks_per_node, part)
        repetitions = int(match[2] or 1)
        if repetitions == 0:
            raise HostlistError("repeats a count 0 times", tasks_per_node, part)
        total += repetitions
        if total > MAX_HOSTS:
            raise HostlistError(f"more than {MAX_HOSTS:,} counts", tasks_per_node, part)
        runs.append((int(match[1]), repetitions))
    return [count for count, repetitions in runs for _ in range(repetitions)]


def _parse(hostlist: str) -> List[_Name]:
    names: List[_Name] = []
    total = 0
    for name in _split_names(hostlist):
        total += _size(name)
        if total > MAX_HOSTS:
            reason = f"stands for more than {MAX_HOSTS:,} hosts"
            raise HostlistError(reason, hostlist, hostlist)
        names.append(name)
    return names


def _split_names(hostlist: str) -> Iterator[_Name]:
    name: _Name = []
    for piece in _PIECES.findall(hostlist):
        first = piece[0]
        if first in ", \t\n":
            if name:
                yield name
            name = []
        elif first == "[" and len(piece) > 1:
            name.append(_parse_group(piece, hostlist))
        elif first in "[]":
            reason = "a '[' that is not closed" if first == "[" else "a ']' without its '['"
            raise HostlistError(reason, hostlist, piece)
        else:
            name.append(piece)
    if name:
        yield name


def _parse_group(text: str, hostlist: str) -> _Group:
    group: _Group = []
    for item in text[1:-1].split(","):
        match = _RANGE.fullmatch(item)
        if match is None:
            reason = f"expected numbers or ranges such as [1,3-5], not {item[:40]!r}"
            raise HostlistError(reason, hostlist, text)
        first, last = int(match[1]), int(match[2] or match[1])
        if last < first:
            raise HostlistError(f"the range {item} runs backwards", hostlist, text)
        if last - first >= MAX_HOSTS_A_RANGE:
            reason = f"the range {item} has more than {MAX_HOSTS_A_RANGE:,} hosts"
            raise HostlistError(reason, hostlist, text)
        group.append(_Range(first, last, len(match[1])))
    return group


def _size(name: _Name) -> int:
    size = 1
    for piece in name:
        if not isinstance(piece, str):
            size *= sum(numbers.last - numbers.first + 1 for numbers in piece)
    return size


def _hosts(name: _Name) -> Iterable[str]:
    texts = [
        [piece]
        if isinstance(piece, str)
        else list(itertools.chain.from_iterable(numbers.texts() for numbers in piece))
        for piece in name
    ]
    if len(texts) == 1:
        return texts[0]
    if len(texts) == 2 and isinstance(name[0], str):  # n[1-3], by far the commonest form
        prefix = texts[0][0]
        return [prefix + text for text in texts[1]]
    # Slurm's order: the last group is the innermost loop, and of the groups before it the
    # rightmost is the outermost. Plain text is a loop of one turn, wherever it stands.
    last = max(i for i, piece in enumerate(name) if not isinstance(piece, str))
    order = [*(i for i in reversed(range(len(texts))) if i != last), last]
    place = [order.index(i) for i in range(len(texts))]
    return (
        "".join(combination[i] for i in place)
        for combination in itertools.product(*(texts[i] for i in order))
    )


def _split_number(host: str) -> Tuple[str, str]:
    if not host or _UNREADABLE.search(host):
        raise HostlistError("no name that a host list can hold", host, host)
    match = _TRAILING_NUMBER.search(host)
    return (host[: match.start()], match[0]) if match else (host, "")


def _fold_key(name: Tuple[str, str]) -> Tuple[str, bool]:
    return name[0], name[1] != ""


def _fold(numbers: List[str]) -> Iterator[str]:
    """Yields runs (``9-11``) and single numbers; a run is as wide as its first number."""
    start = 0
    for i in range(1, len(numbers) + 1):
        first = numbers[start]
        length = i - start
        if (
            i < len(numbers)
            and length < MAX_HOSTS_A_RANGE
            and numbers[i] == str(int(first) + length).zfill(len(first))
        ):
            continue
        yield first if length == 1 else f"{first}-{numbers[i - 1]}"
        start = i
