"""`slurm-resolver run`: a step of several tasks on this machine, where there is no Slurm."""

from __future__ import annotations

import argparse
import contextlib
import os
import re
import shutil
import sys
from typing import List, Optional, Tuple

from slurm_resolver.errors import LaunchError, SlurmResolverError
from slurm_resolver.local import IMITATED_SLURM
from slurm_resolver.preemption.requeue import REQUEUE_STATUS
from slurm_resolver.version import __version__

DESCRIPTION = f"""\
Starts COMMAND as N tasks on this machine, each with the variables that srun sets in a step of one
node (localhost). The options are some of srun's, and do what they do in Slurm {IMITATED_SLURM}.

When a task fails, or on Ctrl-C, all tasks are asked to end, and killed 5 seconds later (Slurm:
KillWait, 30 by default) or on a second Ctrl-C."""

EPILOG = """\
differences from srun:
  each line on the screen begins with its task's rank (srun: with -l), and lines never mix
  a task that fails ends the others (srun: with -K)
  -t is exact to the second (srun rounds it up to minutes)
  --requeue starts the tasks again, at once (sbatch: the batch script)
  -c only sets variables, and binds no task to CPUs
  only variables hide GPUs, so that a program can still reach those of other tasks
  tasks read nothing from standard input (as with srun --input none)
  a signal to this command asks the tasks to end (srun: kills them); SIGUSR1 goes to the tasks, as
  there, and SIGUSR2 is a preemption
  tasks inherit this package's own settings, such as SLURM_RESOLVER_SECRET, and no other variable of
  a Slurm job around this command

requeue: with --requeue the tasks start again, with SLURM_RESTART_COUNT=1 and so on, when one of
them ends with a status of --requeue-exit, or after a preemption, which is SIGUSR2 to this command,
or --preempt-after. That counts from the first step of a training which uses BackupAndResume,
ResumableLoop or termination_config: earlier there is nothing to save. A preempted task gets
SIGTERM, and SIGKILL 5 seconds later. After its time limit nothing is started again, here as on
Slurm. A restart empties the output files, as a requeue on Slurm does, unless --open-mode=append.

restarts: with --restarts N, when a task has failed (its exit status is not 0, nor one of
--requeue-exit), the others end as well, and the job goes on with a new step, which has its own
SLURM_STEP_ID and ports: as in an allocation that outlives its step. The time limit is the job's.
--fail-after kills a task to try it. An error that came twice without progress in between ends the
job, as with slurm-resolver supervise.

exit status: the highest of the tasks'; a task that a signal ended, and all tasks ended by a signal
to this command, count as 128 and the signal's number (Ctrl-C: 130, time limit: 143); 2 when usage
or environment are wrong.

examples:
  slurm-resolver run -n 2 -- python train.py
  slurm-resolver run -n 4 --cpus-per-task 2 --gpus-per-task 1 -- python train.py --epochs 3
  slurm-resolver run -n 2 -o 'rank-%t.log' -t 1:00 --signal USR1@30 -- python train.py
  slurm-resolver run -n 2 --requeue --preempt-after 20 -- python train.py
  slurm-resolver run -n 2 --restarts 2 --fail-after 20:1 -- python train.py"""

_GPU_BIND = re.compile(r"none|closest|(single|per_task):[1-9]\d{0,3}")
_LARGEST_COUNT = 4096
_MAX_RESTARTS = 5  # Slurm's own default (MaxBatchRequeue)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds this subcommand's arguments."""
    add = parser.add_argument
    add("-n", "--ntasks", type=int, default=1, metavar="N", help="tasks (1)")
    add("-N", "--nodes", choices=["1"], help="nodes: this machine is one")
    add(
        *("-c", "--cpus", "--cpus-per-task"),
        dest="cpus",
        type=int,
        metavar="C",
        help="CPUs of each task: sets SLURM_CPUS_PER_TASK",
    )
    add("-J", "--job-name", metavar="NAME", help="SLURM_JOB_NAME (the command's name)")
    _add_gpu_options(parser)
    _add_output_options(parser)
    _add_end_options(parser)
    version = f"slurm-resolver {__version__}, as srun of Slurm {IMITATED_SLURM}"
    add("-V", "--version", action="version", version=version, help="say which srun this imitates")
    add("command_line", nargs=argparse.REMAINDER, metavar="-- COMMAND [ARGUMENT …]")


def _add_gpu_options(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group(
        "GPUs", "the first of those in CUDA_VISIBLE_DEVICES, else 0, 1 and so on"
    )
    add = group.add_mutually_exclusive_group().add_argument
    add(
        *("-G", "--gpus", "--gpus-per-node"),
        dest="gpus",
        type=int,
        metavar="N",
        help="GPUs of all tasks together; 0 hides all",
    )
    add("--gpus-per-task", type=int, metavar="N", help="GPUs of each task, which sees no other")
    group.add_argument(
        "--gpu-bind",
        type=_gpu_bind,
        metavar="HOW",
        help="none or closest (all), single:N (N tasks share one) or per_task:N",
    )


def _add_output_options(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument_group(
        "output",
        "PATTERN is a file name with %t (rank), %j (job id), %s (step id), %N (node's name), %n\n"
        "(node's number), %x (job name), %u (user) or %%. It may also be all (the screen), none,\n"
        "or the rank of the only task that is shown.",
    ).add_argument
    add(
        *("-l", "--label"),
        action=argparse.BooleanOptionalAction,
        help="put the rank before each line (default: on the screen, not in files)",
    )
    add("-o", "--output", metavar="PATTERN", default="all", help="where the output goes (screen)")
    add("-e", "--error", metavar="PATTERN", help="where the errors go (where the output goes)")
    add(
        "--open-mode",
        choices=("append", "truncate"),
        default="truncate",
        help="keep what the files hold, or empty them at every start (truncate)",
    )


def _add_end_options(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument_group("end and restart").add_argument
    add(
        *("-t", "--time"),
        metavar="TIME",
        help="time limit: minutes, minutes:seconds, hours:minutes:seconds, days-hours[:minutes"
        "[:seconds]]; then SIGTERM, and SIGKILL after 5 seconds",
    )
    add(
        "--signal",
        metavar="SIG[@S]",
        help="send the tasks a signal S seconds (60) before the time limit",
    )
    # Each spelling by itself: with an optional value argparse would take the next word for it.
    add(
        *("-K", "-K1", "--kill-on-bad-exit", "--kill-on-bad-exit=1"),
        dest="kill",
        action="store_true",
        default=True,
        help="end all tasks when one fails (default)",
    )
    add(
        *("-K0", "--kill-on-bad-exit=0", "--no-kill-on-bad-exit"),
        dest="kill",
        action="store_false",
        help="let the other tasks go on when one fails",
    )
    add(
        "--requeue",
        action=argparse.BooleanOptionalAction,
        help="start the tasks again where Slurm would requeue",
    )
    add(
        "--max-restarts",
        type=int,
        default=_MAX_RESTARTS,
        metavar="N",
        help=f"how often at most ({_MAX_RESTARTS})",
    )
    add(
        "--requeue-exit",
        type=_statuses,
        default=[REQUEUE_STATUS],
        metavar="STATUS,…",
        help="exit statuses by which a task asks for a restart, as RequeueExit in slurm.conf "
        f"({REQUEUE_STATUS})",
    )
    add(
        "--restarts",
        type=int,
        default=0,
        metavar="N",
        help="start a new step in the same job when a task has failed, N times at most (0)",
    )
    add(
        "--fail-after",
        type=_failure,
        metavar="S[:RANK]",
        help="kill the task RANK (the last one) S seconds after the first start",
    )
    add(
        "--preempt-after",
        type=_preemption,
        metavar="S[:start]",
        help="simulate a preemption S seconds after the training's first step, or after the start "
        "of the tasks",
    )


def main(args: argparse.Namespace) -> int:
    """Runs the tasks to their end, and returns the worst exit status."""
    command = args.command_line[1:] if args.command_line[:1] == ["--"] else args.command_line
    if not command:
        raise LaunchError("no command: slurm-resolver run -n 2 -- python train.py")
    _check_range("-n", args.ntasks, "tasks", 1)
    _check_range("--cpus", args.cpus, "CPUs", 1)
    _check_range("--gpus", args.gpus, "GPUs", 0)
    _check_range("--gpus-per-task", args.gpus_per_task, "GPUs", 0)
    _check_range("--max-restarts", args.max_restarts, "restarts", 0)
    _check_range("--restarts", args.restarts, "restarts", 0)
    if shutil.which(command[0]) is None:
        raise LaunchError(f"{command[0]!r} is not a program that can be started here")
    return _run(args, command)


def _run(args: argparse.Namespace, command: List[str]) -> int:
    # slow to import, and only needed here
    from slurm_resolver.local import RunOptions
    from slurm_resolver.local.environment import gpu_variables
    from slurm_resolver.local.job import LocalJob
    from slurm_resolver.preflight.lonely_step import advise_on_nested_run
    from slurm_resolver.slurm.step import SlurmStep
    from slurm_resolver.slurm.time_limit import parse_time_and_signal
    from slurm_resolver.supervision.policy import LocalFailures

    limit, limit_signal = parse_time_and_signal(args.time, args.signal)
    if args.signal is not None and limit is None:
        _print_line("--signal without a time limit (--time) sends nothing, as on Slurm")
    seconds, rank = args.fail_after or (0.0, None)
    rank = args.ntasks - 1 if rank is None else rank
    if rank >= args.ntasks:
        raise LaunchError(
            f"--fail-after {seconds:g}:{rank}: expected a rank from 0 to {args.ntasks - 1}"
        )
    preempt_after, preempt_from_start = args.preempt_after or (None, False)
    options = RunOptions(
        command,
        args.ntasks,
        args.cpus,
        gpu_variables(args.ntasks, args.gpus, args.gpus_per_task, args.gpu_bind, os.environ),
        job_name=args.job_name,
        output=args.output,
        error=args.error,
        label=args.label,
        append=args.open_mode == "append",
        time_limit=limit,
        limit_signal=limit_signal,
        kill_on_bad_exit=args.kill,
        fail_after=None if args.fail_after is None else (seconds, rank),
        preempt_after=preempt_after,
        preempt_from_start=preempt_from_start,
        requeue=bool(args.requeue),
        requeue_statuses=args.requeue_exit,
        max_restarts=args.max_restarts,
        restarts=args.restarts,
    )
    advice = ""
    with contextlib.suppress(SlurmResolverError):  # variables that nothing here needs
        advice = advise_on_nested_run(SlurmStep.read(), args.ntasks)
    if advice:
        _print_line(advice)
    if not args.restarts:
        return LocalJob(options, _print_line).run(os.environ)
    failures = LocalFailures()
    return LocalJob(options, _print_line, failures.listen, failures.same_again).run(os.environ)


def _print_line(message: str) -> None:
    # in one write, as tasks may print lines at the same time
    sys.stderr.write(f"slurm-resolver run: {message}\n")
    sys.stderr.flush()


def _check_range(option: str, value: Optional[int], what: str, least: int) -> None:
    if value is not None and not least <= value <= _LARGEST_COUNT:
        raise LaunchError(
            f"{option} {value}: expected a number of {what} from {least} to {_LARGEST_COUNT}"
        )


def _gpu_bind(text: str) -> str:
    if _GPU_BIND.fullmatch(text) is None:
        raise argparse.ArgumentTypeError(
            f"{text!r}: expected none, closest, single:N or per_task:N; nothing else can be "
            "simulated here"
        )
    return text


def _statuses(text: str) -> List[int]:
    parts = text.split(",")
    if not all(part.isdecimal() and 0 < int(part) < 256 for part in parts):
        raise argparse.ArgumentTypeError(
            f"{text!r}: expected exit statuses from 1 to 255, as 75,85"
        )
    return [int(part) for part in parts]


def _failure(text: str) -> Tuple[float, Optional[int]]:
    seconds, colon, rank = text.partition(":")
    if not _is_time(seconds) or (colon and not rank.isdecimal()):
        raise argparse.ArgumentTypeError(
            f"{text!r}: expected seconds from 0 on, and a rank from 0 on, as 20:1"
        )
    return float(seconds), int(rank) if colon else None


def _preemption(text: str) -> Tuple[float, bool]:
    seconds, colon, event = text.partition(":")
    if not _is_time(seconds) or (colon and event != "start"):
        raise argparse.ArgumentTypeError(
            f"{text!r}: expected seconds after the first step of the training, 0 or more; or, "
            "after the start of the tasks, as 20:start"
        )
    return float(seconds), bool(colon)


def _is_time(text: str) -> bool:
    try:
        return 0 <= float(text) < float("inf")
    except ValueError:
        return False
