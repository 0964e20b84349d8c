"""Numbers in messages."""

from __future__ import annotations

from typing import Iterable, List


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
