"""`slurm-resolver run`: a step of several tasks on this machine, where there is no Slurm."""

from __future__ import annotations

import argparse
import contextlib
import os
import shutil
import sys
from typing import List, Optional, Tuple

from slurm_resolver.errors import LaunchError, SlurmResolverError
from slurm_resolver.local import IMITATED_SLURM
from slurm_resolver.preemption.requeue import REQUEUE_STATUS

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
  only variables hide GPUs, so that a program can still reach those of other tasks
  tasks read nothing from standard input (as with srun --input none)
  a signal to this command asks the tasks to end (srun: kills them); SIGUSR1 goes to the tasks, as
  there, and SIGUSR2 is a preemption
  tasks inherit this package's own settings, such as SLURM_RESOLVER_SECRET, and no other variable of
  a Slurm job around this command

requeue: with --requeue the tasks start again, up to 5 times, with SLURM_RESTART_COUNT=1 and so on,
when one of them ends with status 75, or after a preemption, which is SIGUSR2 to this command, or
--preempt-after. A preempted task gets SIGTERM, and SIGKILL 5 seconds later. After its time limit
nothing is started again, here as on Slurm. A restart empties the output files.

restarts: with --restarts N, when a task has failed (its exit status is neither 0 nor 75), the
others end as well, and the job goes on with a new step, which has its own SLURM_STEP_ID and ports.
The time limit is the job's.

exit status: the highest of the tasks'; a task that a signal ended, and all tasks ended by a signal
to this command, count as 128 and the signal's number (Ctrl-C: 130, time limit: 143); 2 when usage
or environment are wrong.

examples:
  slurm-resolver run -n 2 -- python train.py
  slurm-resolver run -n 4 --gpus-per-task 1 -- python train.py --epochs 3
  slurm-resolver run -n 2 -o 'rank-%t.log' -t 1:00 --signal USR1@30 -- python train.py
  slurm-resolver run -n 2 --requeue --preempt-after 20 -- python train.py
  slurm-resolver run -n 2 --restarts 2 --fail-after 20:1 -- python train.py"""

_LARGEST_COUNT = 4096


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds this subcommand's arguments."""
    add = parser.add_argument
    add("-n", "--ntasks", type=int, default=1, metavar="N", help="tasks (1)")
    add(
        *("-l", "--label"),
        action=argparse.BooleanOptionalAction,
        help="put the rank before each line (default: on the screen, not in files)",
    )
    add(
        *("-o", "--output"),
        metavar="PATTERN",
        default="all",
        help="where the output goes: a file name with %%t (rank), %%j (job id), %%s (step id), %%N "
        "(node's name), %%n (node's number), %%x (job name), %%u (user) or %%%%; all (the screen, "
        "default), none, or the rank of the only task that is shown",
    )
    group = parser.add_argument_group(
        "GPUs", "the first of those in CUDA_VISIBLE_DEVICES, else 0, 1 and so on"
    )
    add = group.add_mutually_exclusive_group().add_argument
    add(
        *("-G", "--gpus", "--gpus-per-node"),
        dest="gpus",
        type=int,
        metavar="N",
        help="GPUs of all tasks together, each of which sees all; 0 hides all",
    )
    add("--gpus-per-task", type=int, metavar="N", help="GPUs of each task, which sees no other")
    _add_end_options(parser)
    parser.add_argument("command_line", nargs=argparse.REMAINDER, metavar="-- COMMAND [ARGUMENT …]")


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
    add("--requeue", action="store_true", help="start the tasks again where Slurm would requeue")
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
        type=_seconds,
        metavar="S",
        help="simulate a preemption S seconds after the first step of a training that uses "
        "BackupAndResume, ResumableLoop or termination_config: earlier there is nothing to save",
    )


def main(args: argparse.Namespace) -> int:
    """Runs the tasks to their end, and returns the worst exit status."""
    command = args.command_line[1:] if args.command_line[:1] == ["--"] else args.command_line
    if not command:
        raise LaunchError("no command: slurm-resolver run -n 2 -- python train.py")
    _check_range("-n", args.ntasks, 1)
    _check_range("--gpus", args.gpus, 0)
    _check_range("--gpus-per-task", args.gpus_per_task, 0)
    _check_range("--restarts", args.restarts, 0)
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

    limit, limit_signal = parse_time_and_signal(args.time, args.signal)
    if args.signal is not None and limit is None:
        _print_line("--signal without a time limit (--time) sends nothing, as on Slurm")
    fail_after = None
    if args.fail_after is not None:
        seconds, rank = args.fail_after
        fail_after = (seconds, args.ntasks - 1 if rank is None else rank)
        if fail_after[1] >= args.ntasks:
            raise LaunchError(
                f"--fail-after {seconds:g}:{rank}: expected a rank from 0 to {args.ntasks - 1}"
            )
    options = RunOptions(
        command,
        args.ntasks,
        gpu_variables(args.ntasks, args.gpus, args.gpus_per_task, os.environ),
        output=args.output,
        label=args.label,
        time_limit=limit,
        limit_signal=limit_signal,
        kill_on_bad_exit=args.kill,
        fail_after=fail_after,
        preempt_after=args.preempt_after,
        requeue=args.requeue,
        requeue_status=REQUEUE_STATUS,
        restarts=args.restarts,
    )
    with contextlib.suppress(SlurmResolverError):  # variables that nothing here needs
        advice = advise_on_nested_run(SlurmStep.read(), args.ntasks)
        if advice:
            _print_line(advice)
    return LocalJob(options, _print_line).run(os.environ)


def _print_line(message: str) -> None:
    # in one write, as tasks may print lines at the same time
    sys.stderr.write(f"slurm-resolver run: {message}\n")
    sys.stderr.flush()


def _check_range(option: str, value: Optional[int], least: int) -> None:
    if value is not None and not least <= value <= _LARGEST_COUNT:
        raise LaunchError(f"{option} {value}: expected a number from {least} to {_LARGEST_COUNT}")


def _seconds(text: str) -> float:
    with contextlib.suppress(ValueError):
        if 0 <= float(text) < float("inf"):
            return float(text)
    raise argparse.ArgumentTypeError(f"{text!r}: expected seconds, a number from 0 on")


def _failure(text: str) -> Tuple[float, Optional[int]]:
    seconds, colon, rank = text.partition(":")
    if colon and not rank.isdecimal():
        raise argparse.ArgumentTypeError(f"{text!r}: expected seconds and a rank, as 20:1")
    return _seconds(seconds), int(rank) if colon else None
