"""The settings of a batch file, checked before the job waits in the queue for hours."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import NamedTuple

from slurm_resolver.errors import LaunchError
from slurm_resolver.slurm.time_limit import parse_signal, parse_time
from slurm_resolver.slurm.whole_number import read_whole_number
from slurm_resolver.wording import counted

DEFAULT_SIGNAL = "USR1@120"
DEFAULT_TIME = "01:00:00"

_MISREAD = re.compile(r"^:\Z|[\r\ud800-\udfff]")  # a word of a command

# The signals that a batch file and a program can catch, and that have no other meaning.
_CAUGHT = ("USR1", "USR2", "TERM", "INT", "HUP", "QUIT", "ALRM", "URG")
SIGNAL_EARLY_SECONDS = 60  # Slurm may send the signal this much earlier than asked


class BatchSettings(NamedTuple):
    """The settings of a batch file; the names are those of sbatch's options.

    Attributes:
        ps: the number of parameter servers, beside one chief; None for workers only.
        restarts: how often `supervise` restarts the step in its allocation; None for a plain srun.
        spare_nodes: the number of nodes beside `nodes`, for restarts.
        min_nodes: with how many nodes a restart may continue; None for `nodes`.
        signal: the signal before the time limit; None for `DEFAULT_SIGNAL` with `requeue`, else
            for none.
    """

    command: Sequence[str]
    nodes: int = 1
    tasks_per_node: int = 1
    cpus_per_task: int | None = None
    gpus_per_node: str | None = None
    ps: int | None = None
    time: str = DEFAULT_TIME
    restarts: int | None = None
    spare_nodes: int | None = None
    min_nodes: int | None = None
    requeue: bool = False
    signal: str | None = None
    check: bool = True


def check_settings(settings: BatchSettings) -> None:
    """Raises LaunchError for a value that is not valid."""
    if settings.signal and parse_signal(settings.signal)[0].name[3:] not in _CAUGHT:
        raise LaunchError(
            f"--signal {settings.signal}: a training cannot save at this signal; expected one of "
            f"{', '.join(_CAUGHT)}, such as {DEFAULT_SIGNAL}."
        )
    each = settings.tasks_per_node
    gpus = read_whole_number((settings.gpus_per_node or "0").rpartition(":")[2])
    # Parameter servers use no GPUs. Tasks may share one.
    if gpus is None or (gpus > each and gpus % each and not settings.ps):
        raise LaunchError(
            f"--gpus-per-node {settings.gpus_per_node}: expected a number, such as 4 or a100:4, "
            f"and a multiple of --tasks-per-node {each}: TensorFlow's strategies need the same "
            "number of GPUs in each worker."
        )
    limit = parse_time(settings.time)
    _, seconds = parse_signal(settings.signal or DEFAULT_SIGNAL)
    earliest = seconds + SIGNAL_EARLY_SECONDS  # before the time limit
    if settings.signal and limit is not None and limit <= earliest:
        raise LaunchError(
            f"--time {settings.time} and --signal {settings.signal}: Slurm sends the signal up to "
            f"{SIGNAL_EARLY_SECONDS} s early, so it could come as the job starts; expected a "
            f"time of more than {earliest} s."
        )
    command = settings.command
    if command[0][:1] in ("", "-") or any(map(_MISREAD.search, command)):
        raise LaunchError(
            f"the command {command!r}: srun reads a first word that is empty or begins with '-' as "
            "its own, and ':' as the start of another component; sbatch accepts neither carriage "
            "returns nor bytes that are not UTF-8. Put the command into a script."
        )
    if settings.restarts is None and (settings.spare_nodes or settings.min_nodes):
        raise LaunchError(
            "--spare-nodes and --min-nodes: expected --restarts as well, such as --restarts 3: "
            "only a restart uses them."
        )
    least = settings.min_nodes or settings.nodes
    if least > settings.nodes:
        raise LaunchError(f"--min-nodes {least}: expected at most --nodes {settings.nodes}.")
    tasks = least * each
    if settings.ps and tasks < settings.ps + 2:
        raise LaunchError(
            f"--ps {settings.ps}: with the chief and a worker, these need {settings.ps + 2} tasks "
            f"or more, but {counted(least, 'node')} have {tasks}: raise --nodes, --min-nodes or "
            "--tasks-per-node."
        )
