"""What `slurm-resolver exec` gives to a program: its variables, and its arguments filled in."""

from __future__ import annotations

import json
import os
import re
import sys
from typing import Any, Dict, Mapping, Optional, Sequence, Tuple

from slurm_resolver.cluster.cluster import Cluster
from slurm_resolver.cluster.contracts import Contract, placeholders
from slurm_resolver.cluster.task_gpus import apply_gpus
from slurm_resolver.errors import EnvironmentValueError, LaunchError

_PLACEHOLDER = re.compile(r"\{\{([a-z_]+)\}\}|\{([a-z_]+)\}")
_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
ALTERNATIVE = (
    "have the program use SlurmClusterResolver or slurm_resolver.resolve(), which need neither "
    "TF_CONFIG nor arguments"
)


def contract_variables(
    cluster: Cluster,
    contracts: Sequence[Contract],
    force: bool,
    environ: Mapping[str, str] = os.environ,
) -> Dict[str, str]:
    """Returns the variables of the contracts, and those that show the task its GPUs.

    Args:
        cluster: the step's.
        contracts: their names, see `slurm_resolver.cluster.contracts`.
        force: whether to replace what is set already, and differs.
        environ: what is set already.

    Raises:
        EnvironmentValueError: where one is set already, and differs.
    """
    variables: Dict[str, str] = {}
    for contract in contracts:
        variables.update(cluster.variables(contract))
    for name, value in variables.items():
        present = environ.get(name, "")
        if present and not force and _comparable(name, present) != _comparable(name, value):
            raise EnvironmentValueError(
                f"{name}={_shorten(present)!r} is set already, and differs from this step's: "
                f"{_shorten(value)}. Unset it, or replace it with --force."
            )
    gpus = cluster.gpu_decision
    if gpus is None:
        return variables
    if "torch" in contracts and gpus.same_for_all:
        return variables  # its programs take the GPU with the number LOCAL_RANK of all on the node
    own, shown = cluster.task, gpus.visible_before or ()
    if "torch" in contracts and own is not None and shown and own.local_rank >= len(shown):
        print(
            f"slurm-resolver exec: LOCAL_RANK is {own.local_rank}, but Slurm shows this task "
            f"{len(shown)} of the node's GPUs: a program that takes the GPU of that number fails. "
            "Ask for the GPUs by --gpus-per-node instead of --gpus-per-task or --gpu-bind.",
            file=sys.stderr,
        )
    apply_gpus(gpus, cluster.step, variables)
    return variables


def _comparable(name: str, text: str) -> Any:
    if name != "TF_CONFIG":
        return text
    try:
        return json.loads(text)
    except ValueError:
        return None  # differs from every TF_CONFIG


def _shorten(text: str) -> str:
    return text if len(text) <= 1000 else f"{text[:500]} … {text[-500:]}"


def read_settings(given: Sequence[str]) -> Dict[str, str]:
    """Returns by name the values of ``--set NAME=VALUE``, not filled in.

    Raises:
        LaunchError: where one has no name that a shell takes.
    """
    settings = {}
    for text in given:
        name, equals, value = text.partition("=")
        if not equals or not _NAME.fullmatch(name):
            raise LaunchError(f"--set {text!r}: expected NAME=VALUE, as in --set RANK={{rank}}")
        settings[name] = value
    return settings


class FilledIn:
    """Fills {job}, {index} and so on into words."""

    def __init__(self, cluster: Cluster) -> None:
        """Takes the values of this task; they are made when a word needs them."""
        self._cluster = cluster
        self._values: Optional[Dict[str, str]] = None

    def word(self, text: str, option: str = "") -> str:
        """Returns the text filled in; ``{{rank}}`` stands for ``{rank}`` itself.

        Braces with anything else in them stay as they are, but in the value of an option: what
        looks like a placeholder there is misspelt.

        Args:
            text: what to fill in.
            option: where it is from, in messages; "" for an argument of the program.

        Raises:
            LaunchError: for an unknown name in the value of an option.
        """
        if "{" not in text:
            return text
        if self._values is None:
            self._values = placeholders(
                self._cluster.tasks, self._cluster.task, self._cluster.data_service
            )
        values = self._values

        def fill(found: re.Match[str]) -> str:
            escaped, name = found.groups()
            if escaped is not None:
                return f"{{{escaped}}}" if escaped in values else found[0]
            if name not in values and option:
                raise LaunchError(
                    f"{option}: {{{name}}} is none of {', '.join(values)}; write {{{{{name}}}}} "
                    f"for {{{name}}} itself"
                )
            return values.get(name, found[0])

        return _PLACEHOLDER.sub(fill, text)


def check_lengths(command: Sequence[str], variables: Mapping[str, str]) -> None:
    """Checks that Linux passes the arguments and variables to a program.

    Raises:
        LaunchError: where one of them is too long.
    """
    limit = 32 * os.sysconf("SC_PAGE_SIZE")  # MAX_ARG_STRLEN, with the zero that ends a string
    pieces: Sequence[Tuple[str, str]] = [
        *((name, f"{name}={value}") for name, value in variables.items()),
        *((f"the argument {word[:40]!r}…", word) for word in command),
    ]
    for name, text in pieces:
        size = len(os.fsencode(text)) + 1
        if size > limit:
            raise LaunchError(
                f"{name} is {size} bytes long with this step's tasks filled in; expected {limit} "
                "at most, as Linux passes no more to a program in one variable or argument "
                f"(MAX_ARG_STRLEN). Start fewer tasks, or {ALTERNATIVE}."
            )
