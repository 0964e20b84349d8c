"""Numbers, names and tables in messages."""

from __future__ import annotations

from collections.abc import Container, Iterable, Sequence


def counted(number: int, noun: str) -> str:
    """Returns a number and its noun, in the singular or the plural.

    >>> counted(1, "task"), counted(2, "task")
    ('1 task', '2 tasks')
    """
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"


def brief(seconds: float) -> str:
    """Returns a number of seconds as a person says it: from 3 on, a whole one.

    >>> brief(0.514), brief(7.98)
    ('0.51', '8')
    """
    return f"{seconds:.0f}" if seconds >= 3 else f"{seconds:.2g}"


def fold(numbers: Iterable[str], most: int) -> list[str]:
    """Returns the numbers and ranges that stand for these, in their order, as in a host list.

    All numbers of a range have at least as many digits as its first, and it has at most `most`.

    >>> fold(["09", "10", "3", "4", "5"], most=2)
    ['09-10', '3-4', '5']
    """
    ranges = []
    last: list[str] = []  # the newest range
    for digits in numbers:
        if last and len(last) < most and digits == str(int(last[-1]) + 1).zfill(len(last[0])):
            last.append(digits)
        else:
            last = [digits]
            ranges.append(last)
    return ["-".join(dict.fromkeys((run[0], run[-1]))) for run in ranges]


def shorten(names: Sequence[str], most: int = 5, separator: str = ", ") -> str:
    """Returns the first names, and how many more there are.

    >>> shorten(["n1", "n2", "n3"], 2)
    'n1, n2 and 1 more'
    """
    more = len(names) - most
    return separator.join(names[:most]) + (f" and {more} more" if more > 0 else "")


def aligned(rows: Sequence[Sequence[str]], numbers: Container[int]) -> list[str]:
    """Returns a line for each row, with aligned columns; those at `numbers` are aligned right.

    >>> aligned([["node", "tasks"], ["n1", "2"]], numbers=[1])
    ['node  tasks', 'n1        2']
    """
    cells = [
        f"{{:{'>' if at in numbers else '<'}{max(map(len, column))}}}"
        for at, column in enumerate(zip(*rows))
    ]
    return ["  ".join(cells).format(*row).rstrip() for row in rows]
