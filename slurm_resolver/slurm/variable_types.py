"""What the variables of a process may contain."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Callable, Generic, TypeVar, overload

from slurm_resolver.errors import UnreadableValueError, shorten_value
from slurm_resolver.slurm.hostlist import expand_hostlist
from slurm_resolver.slurm.whole_number import LAST_PORT, read_whole_number

Environ = Mapping[str, str]
Exports = dict[str, str]  # the variables to set for a program, by name
Nodes = Sequence[str]  # the names of a step's nodes
Value = TypeVar("Value")


@dataclass(eq=False)
class Variable(Generic[Value]):
    """A variable, and the field of `SlurmStep` that holds its value.

    ``SlurmStep.rank`` is the variable. ``step.rank`` is its value in one step; None if it is not
    set.

    Attributes:
        name: the name of the variable, such as ``SLURM_PROCID``.
        read: reads a text; returns None or raises ValueError for one that cannot be used.
        expected: what its value should be, for messages.
        empty_is_unset: whether an empty text counts as unset.
        field: the name of the field, such as ``rank``.
    """

    name: str
    read: Callable[[str], Value | None]
    expected: str
    empty_is_unset: bool = True

    def __set_name__(self, owner: type, field: str) -> None:
        self.field = field

    @overload
    def __get__(self, step: None, owner: type) -> Variable[Value]: ...
    @overload
    def __get__(self, step: object, owner: type) -> Value | None: ...
    def __get__(self, step: Any, owner: type) -> Any:
        # Python calls this only where the step itself has no value for the field.
        return self if step is None else None

    def parse(self, text: str, name: str = "") -> Value | None:
        """Returns the value that a text stands for; None if it counts as unset.

        `name` is for the message, for a variable of the same kind.

        Raises:
            UnreadableValueError: for a text that cannot be used.
        """
        if self.empty_is_unset and text in ("", "(null)"):
            return None
        reason = ""
        try:
            value = self.read(text)
            if value is not None:
                return value
        except ValueError as error:
            reason = f" ({error})"
        raise UnreadableValueError(
            f"{name or self.name}={shorten_value(text)!r}: expected {self.expected}{reason}. "
            "Look for a script that exports it, or unset it, and start again with srun: Slurm and "
            "this package set their own variables."
        )


def text_variable(name: str) -> Variable[str]:
    """Returns a variable that holds any text; an empty value counts as unset."""
    return Variable(name, str, "a text")


def number_variable(name: str, minimum: int = 0, maximum: float = math.inf) -> Variable[int]:
    """Returns a variable that holds a whole number from `minimum` to `maximum`."""
    upto = f"to {maximum}" if maximum < math.inf else "upwards"
    return Variable(
        name,
        lambda text: read_whole_number(text, minimum, maximum),
        f"a whole number from {minimum} {upto}",
    )


def devices_variable(name: str) -> Variable[str]:
    """Returns a variable that shows GPUs; an empty value means no GPU, and not unset."""
    return Variable(name, str, "devices separated by commas", empty_is_unset=False)


def parse_ports(text: str) -> tuple[int, ...] | None:
    """Reads ``23001-23008,23010``, which is written as inside a bracket of a host list.

    The ports are in this order, each once.
    """
    if not re.fullmatch("[0-9,-]+", text):
        return None
    ports = tuple(dict.fromkeys(map(int, expand_hostlist(f"[{text}]"))))
    return ports if 1 <= min(ports) <= max(ports) <= LAST_PORT else None


def parse_distribution(text: str) -> str | None:
    """Reads the first field, which alone places tasks on nodes; ``pack`` alone is the default."""
    first = re.split("[:,=]", text)[0].strip().lower()
    if first in ("pack", "nopack", "*", "unknown"):
        return "block"
    return first if first in ("block", "cyclic", "plane", "arbitrary") else None


def parse_gpu_binding(text: str) -> str:
    """Reads how srun binds tasks to GPUs, such as "closest"; "" for any other text.

    "single:1" gives each task a GPU of its own; "single" is one GPU for several tasks.
    """
    found = re.search(
        r"gpu:(?:verbose,)?(none|closest|per_task|map|mask|single:1\b|single)",
        text,
    )
    return found[1] if found else ""


def parse_switch(text: str) -> str | None:
    """Reads ``on`` or ``off``, in any case."""
    return text.lower() if text.lower() in ("on", "off") else None
