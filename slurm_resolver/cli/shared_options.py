"""Options that several subcommands share."""

from __future__ import annotations

import math
import re
import shutil
from argparse import REMAINDER, ArgumentParser, ArgumentTypeError, Namespace
from contextlib import suppress
from typing import Any, Callable, NoReturn

from slurm_resolver.errors import LaunchError
from slurm_resolver.slurm.whole_number import LAST_PORT, read_whole_number

Command = list[str]  # the words of a command line


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


# What argparse is told of an option with a value, by the name of the value in the help, or by the
# names of the option.
_KEYWORDS: dict[str, dict[str, Any]] = {
    "JOB=N,…": {"type": numbers_by_name},
    "JOB=GROUP,…": {"type": numbers_by_name},
    "JOB,…": {"type": lambda text: text.split(",")},
    "N": {"type": number_type(1)},
    "PORT": {"type": number_type(1, LAST_PORT)},
    "SECONDS": {"type": seconds},
    "STATUS": {"type": number_type(0, 255)},
    "JOBID[_TASK][.STEP]": {"nargs": "?"},
    "LOGFILE": {"nargs": "*"},
    "-- COMMAND [ARGUMENT …]": {"nargs": REMAINDER},
    "-- srun [OPTION …] PROGRAM": {"nargs": REMAINDER},
    "--restarts": {"type": number_type(0)},
    "--max-restarts": {"type": number_type(0)},
    "-n --ntasks": {"type": number_type(1, 4096)},
    "-G --gpus --gpus-per-node": {"type": number_type(0, 4096)},
    "--env": {"action": "append"},
}
# The names of an option, or of an argument, and that of its value.
_SPELLING = re.compile(r"(\w+|-\S+(?: -\S+)*) ?(.*)")


class Parser(ArgumentParser):
    """A parser whose errors are one line."""

    def error(self, message: str) -> NoReturn:
        """Ends the program."""
        self.exit(2, f"{self.prog}: {message} (see {self.prog} --help)\n")

    def add(self, spelling: str, help: str) -> None:
        """Adds an option as its help shows it: "-n --ntasks N", or "--layout auto|environment".

        Without a value it is a switch, which sets the name after "--no-" to False. An argument has
        its own name before that of its value: "logs LOGFILE". What is not given is None.
        """
        names, value = _SPELLING.findall(spelling)[0]
        words = names.split()
        keywords: dict[str, Any] = {"action": "store_true", "default": None}
        if value:
            keywords = _KEYWORDS.get(names) or _KEYWORDS.get(value, {})
            keywords = {"metavar": value, **keywords}
        elif names.startswith("--no-"):
            keywords["action"] = "store_false"
            keywords["dest"] = words[0][len("--no-") :].replace("-", "_")
        if "|" in value:
            keywords["choices"] = value.split("|")
        self.add_argument(*words, help=help, **keywords)


# An option for each keyword of `slurm_resolver.resolve`.
CLUSTER_OPTIONS = {
    "--jobs JOB=N,…": (
        "tasks of each job, such as ps=2,worker=-1 (-1: the rest); default: all are workers"
    ),
    "--placement spread|rank": (
        "spread: parameter servers on distinct nodes (default); rank: as TensorFlow's resolver"
    ),
    "--worker-order ring|rank": (
        "ring: all-reduce enters and leaves each node only once (default); rank: by rank"
    ),
    "--het-groups JOB=GROUP,…": "take a job's tasks from this component of a heterogeneous step",
    "--port-base PORT": "first port on each node",
    "--node-address SUFFIX": (
        "appended to node names, as in --node-address=-ib0; slurm: the addresses that Slurm has"
    ),
    "--gpu-jobs JOB,…": "jobs whose tasks use GPUs; default: all but ps and, beside ps, chief",
    "--layout auto|environment|rendezvous": (
        "source of the layout; auto (default): Slurm's variables, or the tasks if these do not "
        "suffice"
    ),
}


def values_of(args: Namespace, kind: Any) -> dict[str, Any]:
    """Returns the values of the given options that are fields of a NamedTuple."""
    return {
        name: value
        for name, value in vars(args).items()
        if name in kind._fields and value is not None
    }


def command_of(args: Namespace, starts_here: bool = True) -> Command:
    """Returns the words of the command line to start.

    Raises:
        LaunchError: without any, or if it is to be started here and PATH has no such program.
    """
    words: Command = args.command_line
    if words[:1] == ["--"]:
        words = words[1:]
    if not words:
        raise LaunchError(f"no command after -- (see slurm-resolver {args.subcommand} --help)")
    if starts_here and not shutil.which(words[0]):
        raise LaunchError(
            f"{words[0]!r} is not a program that can be started here: it is not on PATH, or "
            "lacks the permission to be executed"
        )
    return words
