"""Numbers, names and tables in messages."""

from __future__ import annotations

from collections.abc import Container, Iterable, Sequence


def counted(number: int, noun: str) -> str:
    """Returns a number and its noun, in the singular or the plural.

    >>> counted(1, "task"), counted(2, "task")
    ('1 task', '2 tasks')
    """
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"


def ranges_of(numbers: Iterable[int]) -> list[str]:
    """Returns the numbers as ascending ranges.

    >>> ranges_of([4, 1, 2, 3, 9])
    ['1-4', '9']
    """
    ranges: list[list[int]] = []
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


def aligned(rows: Sequence[Sequence[str]], numbers: Container[int]) -> list[str]:
    """Returns a line for each row, with aligned columns; those at `numbers` are aligned right.

    >>> aligned([["node", "tasks"], ["n1", "2"]], numbers=[1])
    ['node  tasks', 'n1        2']
    """
    widths = [max(map(len, column)) for column in zip(*rows)]
    cells = [f"{{:{'>' if at in numbers else '<'}{width}}}" for at, width in enumerate(widths)]
    return ["  ".join(cells).format(*row).rstrip() for row in rows]
