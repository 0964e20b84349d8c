"""Numbers in messages."""

from __future__ import annotations

from typing import Iterable, List, Sequence


def counted(number: int, noun: str) -> str:
    """Returns a number and its noun, in the singular or the plural.

    >>> counted(1, "task"), counted(2, "task")
    ('1 task', '2 tasks')
    """
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"


def ranges_of(numbers: Iterable[int]) -> List[str]:
    """Returns the numbers as ascending ranges.

    >>> ranges_of([4, 1, 2, 3, 9])
    ['1-4', '9']
    """
    ranges: List[List[int]] = []
    for number in sorted(numbers):
        if ranges and number <= ranges[-1][1] + 1:
            ranges[-1][1] = number
        else:
            ranges.append([number, number])
    return [str(first) if first == last else f"{first}-{last}" for first, last in ranges]


def shorten(names: Sequence[str], most: int) -> str:
    """Returns the first names, and how many more there are.

    >>> shorten(["n1", "n2", "n3"], 2)
    'n1, n2 and 1 more'
    """
    more = len(names) - most
    return ", ".join(names[:most]) + (f" and {more} more" if more > 0 else "")
