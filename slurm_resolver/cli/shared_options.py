"""Options that several subcommands share."""

from __future__ import annotations

import math
import re
import shutil
from argparse import REMAINDER, ArgumentParser, ArgumentTypeError, Namespace
from contextlib import suppress
from typing import Any, Callable, NoReturn, TypeVar

from slurm_resolver.cluster.options import LAYOUTS, PLACEMENTS, WORKER_ORDERS
from slurm_resolver.errors import LaunchError
from slurm_resolver.slurm.whole_number import LAST_PORT, read_whole_number

Command = list[str]  # the words of a command line
Options = TypeVar("Options")


def number_type(least: int, most: int = 1_000_000) -> Callable[[str], int]:
    """Returns a function that reads a number in this range."""

    def read(text: str) -> int:
        number = read_whole_number(text, least, most)
        if number is None:
            raise ArgumentTypeError(f"{text!r}: expected a number from {least} to {most}")
        return number

    return read


def numbers_by_name(text: str) -> dict[str, int]:
    """Reads ``ps=2,worker=-1``."""
    pairs = [
        re.fullmatch(r"([^\s=]+)\s*=\s*(-?[0-9]{1,9})", part.strip()) for part in text.split(",")
    ]
    numbers = {pair[1]: int(pair[2]) for pair in pairs if pair}
    if len(numbers) < len(pairs):
        raise ArgumentTypeError(f"{text!r}: expected NAME=NUMBER,…, each name once")
    return numbers


def seconds(text: str) -> float:
    """Reads a number of seconds."""
    with suppress(ValueError):
        if 0 <= float(text) < math.inf:
            return float(text)
    raise ArgumentTypeError(f"{text!r}: expected seconds, a number from 0 on")


# How an option's value is read, by its name in the help.
_TYPES: dict[str, Callable[[str], Any]] = {
    "JOB=N,…": numbers_by_name,
    "JOB=GROUP,…": numbers_by_name,
    "N": number_type(1),
    "PORT": number_type(1, LAST_PORT),
    "SECONDS": seconds,
}


class Parser(ArgumentParser):
    """A parser whose errors are one line."""

    def error(self, message: str) -> NoReturn:
        """Ends the program."""
        self.exit(2, f"{self.prog}: {message} (see {self.prog} --help)\n")

    def add(self, spelling: str, help: str | None, **keywords: Any) -> None:
        """Adds an option as its help shows it: "-n --ntasks N"; without a value it is a switch.

        The name of the value says how it is read, unless `keywords` have a type. An argument has
        its own name before that of its value: "logs LOGFILE".
        """
        words = spelling.split()
        names = [word for word in words if word.startswith("-")] or words[:1]
        if len(names) < len(words):
            keywords.setdefault("metavar", words[-1])
            keywords.setdefault("type", _TYPES.get(words[-1]))
        elif "choices" not in keywords:
            keywords.setdefault("action", "store_true")
        self.add_argument(*names, help=help, **keywords)


OptionAdder = Callable[..., None]  # Parser.add


def add_cluster_options(add: OptionAdder) -> None:
    """Adds an option for each keyword of `slurm_resolver.resolve`."""
    add(
        "--jobs JOB=N,…",
        "tasks of each job, such as ps=2,worker=-1 (-1: the rest); default: all are workers",
    )
    add(
        "--placement",
        "spread: parameter servers on distinct nodes (default); rank: as TensorFlow's resolver",
        choices=PLACEMENTS,
        default="spread",
    )
    add(
        "--worker-order",
        "ring: all-reduce enters and leaves each node only once (default); rank: by rank",
        choices=WORKER_ORDERS,
        default="ring",
    )
    add(
        "--het-groups JOB=GROUP,…",
        "take a job's tasks from this component of a heterogeneous step",
    )
    add("--port-base PORT", "first port on each node")
    add(
        "--node-address SUFFIX",
        "appended to node names, as in --node-address=-ib0; slurm: the addresses that Slurm has",
    )
    add(
        "--gpu-jobs JOB,…",
        "jobs whose tasks use GPUs; default: all but ps and, beside ps, chief",
        type=lambda text: text.split(","),
    )
    add(
        "--layout",
        "source of the layout; auto: Slurm's variables, or the tasks if these do not suffice",
        choices=LAYOUTS,
        default="auto",
    )


def values_of(args: Namespace, kind: Any) -> dict[str, Any]:
    """Returns the values of the options that are fields of a NamedTuple."""
    return {name: value for name, value in vars(args).items() if name in kind._fields}


def options_of(args: Namespace, kind: Callable[..., Options], **others: Any) -> Options:
    """Returns a NamedTuple with the values of its options, and `others`."""
    return kind(**{**values_of(args, kind), **others})


def add_command(add: OptionAdder, metavar: str = "COMMAND [ARGUMENT …]") -> None:
    """Adds the command line to start, which follows `--`."""
    add("command_line COMMAND", None, nargs=REMAINDER, metavar=f"-- {metavar}")


def command_of(args: Namespace, starts_here: bool = True) -> Command:
    """Returns the words of the command line to start.

    Raises:
        LaunchError: without any, or if it is to be started here and PATH has no such program.
    """
    words: Command = args.command_line
    if words[:1] == ["--"]:
        words = words[1:]
    if not words:
        raise LaunchError(f"no command after -- (see slurm-resolver {args.command} --help)")
    if starts_here and not shutil.which(words[0]):
        raise LaunchError(
            f"{words[0]!r} is not a program that can be started here: it is not on PATH, or "
            "lacks the permission to be executed"
        )
    return words
