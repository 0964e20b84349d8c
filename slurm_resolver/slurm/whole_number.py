"""One rule for whole numbers: which values and texts are one, and in which range.

A caller's value may be any integer, such as one of NumPy's; ``True`` and ``8.0`` are mistakes. A
text holds ASCII digits and nothing else: ``int()`` would take ``" 1_0"`` and other alphabets' too.
"""

from __future__ import annotations

import math
import re
from numbers import Integral

LAST_PORT = 65_535  # the first one is 1

_DIGITS = re.compile("[0-9]{1,19}")


def whole_number(value: object, least: float = 0, most: float = math.inf) -> int | None:
    """Returns a value as an int; None unless it is a whole number from `least` to `most`.

    >>> whole_number(3), whole_number(3.0), whole_number(True), whole_number(-1)
    (3, None, None, None)
    """
    if isinstance(value, bool) or not isinstance(value, Integral):
        return None
    number = int(value)
    return number if least <= number <= most else None


def read_whole_number(text: str, least: float = 0, most: float = math.inf) -> int | None:
    """Returns the number that a text of digits stands for, as `whole_number`.

    >>> read_whole_number("12"), read_whole_number("-1"), read_whole_number("12", most=9)
    (12, None, None)
    """
    return whole_number(int(text), least, most) if _DIGITS.fullmatch(text) else None
