"""The settings of a batch file, checked before the job waits in the queue for hours."""

from __future__ import annotations

import re
from typing import Mapping, NamedTuple, Optional, Sequence

from slurm_resolver.cluster.jobs import job_counts
from slurm_resolver.errors import LaunchError
from slurm_resolver.slurm.time_limit import parse_time
from slurm_resolver.wording import counted

DEFAULT_SIGNAL = "USR1@120"
DEFAULT_TIME = "01:00:00"

SIGNAL_EARLY_SECONDS = 60  # Slurm may send the signal this much earlier than asked
# that a batch file can catch, and that have no other meaning
SIGNALS = ("USR1", "USR2", "TERM", "INT", "HUP", "QUIT", "ALRM", "URG")


class BatchSettings(NamedTuple):
    """The settings of a batch file; the names are those of sbatch's options.

    Attributes:
        jobs: counts by job name, as for `resolve`; None for workers only.
        ps_nodes: the number of further nodes, without GPUs, for the chief and the parameter
            servers, in a heterogeneous job; `nodes` and `tasks_per_node` are the workers' then.
        restarts: how often `supervise` restarts the step in its allocation; None for a plain srun.
        spare_nodes: the number of nodes beside `nodes`, for restarts.
        min_nodes: with how many nodes a restart may continue; None for `nodes`.
        max_restarts: how often the batch file requeues the job; None for 10, or 100 with a ps.
    """

    command: Sequence[str]
    nodes: int = 1
    tasks_per_node: int = 1
    cpus_per_task: Optional[int] = None
    gpus_per_node: Optional[str] = None
    jobs: Optional[Mapping[str, int]] = None
    ps_nodes: Optional[int] = None
    ps_partition: Optional[str] = None
    job_name: Optional[str] = None
    mem: Optional[str] = None
    time: str = DEFAULT_TIME
    partition: Optional[str] = None
    account: Optional[str] = None
    qos: Optional[str] = None
    constraint: Optional[str] = None
    restarts: Optional[int] = None
    spare_nodes: Optional[int] = None
    min_nodes: Optional[int] = None
    array: Optional[str] = None
    exclusive: bool = False
    requeue: bool = False
    signal: Optional[str] = None
    max_restarts: Optional[int] = None
    exec: bool = False
    check: bool = True
    wait: int = 120
    env_setup: Sequence[str] = ()


def check_settings(settings: BatchSettings) -> None:
    """Raises LaunchError for a value that is not valid, JobsError for jobs that do not fit."""
    for name, value in settings._asdict().items():
        for text in settings.env_setup if name == "env_setup" else [value]:
            if isinstance(text, str) and not (text.strip() and text.isprintable()):
                raise _refused(name, text, "one line of printable characters")
    if "/" in (settings.job_name or ""):
        raise _refused("job_name", settings.job_name, "no slash, as the output file is named so")
    _check_time(settings)
    _check_command(settings.command)
    for name, other in (
        ("ps_partition", "ps_nodes"),
        ("spare_nodes", "restarts"),
        ("min_nodes", "restarts"),
    ):
        if getattr(settings, name) is not None and getattr(settings, other) is None:
            expected = f"--{other.replace('_', '-')} as well"
            raise _refused(name, getattr(settings, name), expected)
    _check_jobs(settings, settings.nodes)
    if settings.min_nodes is not None:
        if settings.min_nodes > settings.nodes:
            raise _refused("min_nodes", settings.min_nodes, f"at most --nodes {settings.nodes}")
        _check_jobs(settings, settings.min_nodes)


def _check_time(settings: BatchSettings) -> None:
    limit = parse_time(settings.time)
    earliest = seconds_after_signal(settings) + SIGNAL_EARLY_SECONDS  # before the time limit
    if job_signal(settings) and limit is not None and limit <= earliest:
        raise LaunchError(
            f"--time {settings.time} and --signal {job_signal(settings)}: Slurm sends the signal "
            f"up to {SIGNAL_EARLY_SECONDS} s early, so that it could come as the job starts; "
            f"expected a time of more than {earliest} s."
        )


def _check_command(command: Sequence[str]) -> None:
    if not command[0] or command[0].startswith("-"):
        raise LaunchError(f"{command[0]!r}: expected a program; srun would read it as an option.")
    for word in command:
        if word == ":" or re.search("[\r\ud800-\udfff]", word):
            raise LaunchError(
                f"the word {word!r} of the command: srun reads ':' as the start of another "
                "component, and sbatch no carriage return and no bytes that are not UTF-8; put "
                "the command into a script."
            )


def _check_jobs(settings: BatchSettings, nodes: int) -> None:
    jobs = settings.jobs or {}
    tasks = nodes * settings.tasks_per_node
    if settings.ps_nodes is not None:
        if dict(jobs) != {"chief": 1, "ps": jobs.get("ps", 0), "worker": -1}:
            raise LaunchError("--ps-nodes: expected --ps as well, the number of parameter servers.")
        if settings.ps_nodes > jobs["ps"] + 1:
            expected = f"at most {jobs['ps'] + 1}, the number of chief and parameter servers"
            raise _refused("ps_nodes", settings.ps_nodes, expected)
        if settings.restarts is not None or settings.array is not None:
            raise LaunchError(
                "--ps-nodes makes a heterogeneous job: expected no --array, which Slurm does not "
                "have for one, and no --restarts, as slurm-resolver supervise does not restart its "
                "step. Leave out --ps-nodes, or use --requeue instead of --restarts."
            )
        tasks += jobs["ps"] + 1
    if jobs.get("ps", 0) < 0:
        raise LaunchError(f"jobs={dict(jobs)!r}: expected a number of parameter servers.")
    place = f"{counted(nodes, 'node')} with {counted(settings.tasks_per_node, 'task')} each"
    counts = job_counts(
        settings.jobs,
        tasks,
        f"{place} (--nodes, --tasks-per-node) have {{tasks}}",
        "ask for more nodes, or tasks on each: {needed} in all",
    )
    if set(counts) <= {"chief", "ps", "evaluator"}:
        raise LaunchError(
            f"jobs={dict(jobs)!r} leave none of the {counted(tasks, 'task')} ({place}) for a "
            "worker: expected fewer others, or more --nodes or --tasks-per-node."
        )


def _refused(name: str, value: object, expected: str) -> LaunchError:
    return LaunchError(f"--{name.replace('_', '-')} {value!r}: expected {expected}.")


def job_signal(settings: BatchSettings) -> Optional[str]:
    """Returns the value of --signal; None without a signal."""
    return settings.signal or (DEFAULT_SIGNAL if settings.requeue else None)


def script_requeues(settings: BatchSettings) -> bool:
    """Whether the batch file gets the signal and requeues the job, as parameter servers do not."""
    return settings.requeue and (settings.jobs or {}).get("ps", 0) > 0


def seconds_after_signal(settings: BatchSettings) -> int:
    """Returns the seconds from the signal to the time limit."""
    return int((job_signal(settings) or "").partition("@")[2] or 60)  # sbatch's own default
