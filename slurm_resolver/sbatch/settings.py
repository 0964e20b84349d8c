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
_MOST_CHECK_RESTARTS = 3  # as the check may also fail for another reason
_SIGNAL_EARLY_SECONDS = 60  # Slurm may send the signal this much earlier than asked


class BatchSettings(NamedTuple):
    """The settings of a batch file; the names are those of sbatch's options.

    Attributes:
        ps: the number of parameter servers, beside one chief; None for workers only.
        restarts: how often `supervise` restarts the step in its allocation; 0 for a plain srun.
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
    restarts: int = 0
    spare_nodes: int = 0
    min_nodes: int | None = None
    requeue: bool = False
    signal: str | None = None
    check: bool = True


def derive_values(settings: BatchSettings) -> dict[str, object]:
    """Returns what follows from the settings, for the text of the file.

    Raises:
        LaunchError: for a value that is not valid.
    """
    number, seconds = parse_signal(settings.signal or DEFAULT_SIGNAL)
    # What a start needs, such that the signal does not interrupt it.
    least_time = seconds + _SIGNAL_EARLY_SECONDS
    limit = parse_time(settings.time)
    each = settings.tasks_per_node
    gpus = read_whole_number((settings.gpus_per_node or "0").rpartition(":")[2])
    # With how many nodes the training can run.
    nodes = settings.min_nodes or settings.nodes
    all_nodes = settings.nodes + settings.spare_nodes
    # Parameter servers do not requeue the job.
    by_script = settings.requeue and settings.ps is not None
    by_tasks = settings.requeue and not by_script
    if number.name[3:] not in _CAUGHT or not seconds:
        raise LaunchError(
            f"--signal {settings.signal}: a training cannot save at this signal; expected one of "
            f"{', '.join(_CAUGHT)}, and a second or more, such as {DEFAULT_SIGNAL}."
        )
    # Parameter servers use no GPUs. Tasks may share one.
    if gpus is None or (gpus > each and gpus % each and not settings.ps):
        raise LaunchError(
            f"--gpus-per-node {settings.gpus_per_node}: expected a number, such as 4 or a100:4, "
            f"and a multiple of --tasks-per-node {each}: TensorFlow's strategies need the same "
            "number of GPUs in each worker."
        )
    if settings.signal and limit and limit <= least_time:
        raise LaunchError(
            f"--time {settings.time} and --signal {settings.signal}: Slurm sends the signal up to "
            f"{_SIGNAL_EARLY_SECONDS} s early, so it could come as the job starts; expected a "
            f"time of more than {least_time} s."
        )
    if settings.command[0][:1] in ("", "-") or any(map(_MISREAD.search, settings.command)):
        raise LaunchError(
            f"the command {settings.command!r}: srun reads a first word that is empty or begins "
            "with '-' as its own, and ':' as the start of another component; sbatch accepts "
            "neither carriage returns nor bytes that are not UTF-8. Put the command into a script."
        )
    if not settings.restarts and (settings.spare_nodes or settings.min_nodes):
        raise LaunchError(
            "--spare-nodes and --min-nodes: expected --restarts as well, such as --restarts 3: "
            "only a restart uses them."
        )
    if nodes > settings.nodes:
        raise LaunchError(
            f"--min-nodes {settings.min_nodes}: expected at most --nodes {settings.nodes}."
        )
    if settings.ps and nodes * each < settings.ps + 2:
        raise LaunchError(
            f"--ps {settings.ps}: with the chief and a worker, these need {settings.ps + 2} tasks "
            f"or more, but {counted(nodes, 'node')} have {nodes * each}: raise --nodes, "
            "--min-nodes or --tasks-per-node."
        )
    return {
        "all_nodes": all_nodes,
        "least_nodes": nodes,
        # Once for each node that is not needed.
        "check_restarts": min(all_nodes - nodes, _MOST_CHECK_RESTARTS),
        "several_nodes": settings.nodes > 1,
        "several_tasks": settings.nodes * each > 1,
        "signal_seconds": seconds,
        "least_time": least_time,
        "by_script": by_script,
        "to_tasks": not by_script,
        "by_tasks": by_tasks,
        "ends_all": not by_tasks,
    }
