"""Numbers, names and tables in messages."""

from __future__ import annotations

from collections.abc import Container, Sequence


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
