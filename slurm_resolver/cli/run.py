"""`slurm-resolver run`: a step of several tasks on this machine, without Slurm."""

from __future__ import annotations

import argparse
import contextlib
import os
import shutil
import sys
from typing import List, Optional, Tuple

from slurm_resolver.cli.options import add_command, check_range, command_of, seconds
from slurm_resolver.errors import LaunchError, SlurmResolverError
from slurm_resolver.local import IMITATED_SLURM
from slurm_resolver.preemption.requeue import REQUEUE_STATUS

DESCRIPTION = f"""\
Starts COMMAND as N tasks on this machine, each with the variables that srun sets in a step of one
node (localhost). Its options are some of srun's, with the meaning of Slurm {IMITATED_SLURM}.

If a task fails, or on Ctrl-C, all tasks receive SIGTERM, and SIGKILL 5 seconds later (Slurm:
KillWait, 30 by default) or on a second Ctrl-C."""

EPILOG = """\
differences from srun:
  each line on the screen begins with its task's rank (srun: with -l), and lines never mix
  a task that fails ends the others (srun: with -K)
  -t is exact to the second (srun rounds it up to minutes)
  --requeue restarts the tasks at once (sbatch: the batch script)
  only variables hide GPUs: a program can still reach those of other tasks
  tasks read nothing from standard input (srun: with --input none)
  a signal to this command ends the tasks (srun: kills them); SIGUSR1 goes to the tasks (as in
  srun), and SIGUSR2 is a preemption
  tasks inherit this package's own settings, such as SLURM_RESOLVER_SECRET, and no other variable of
  a Slurm job around this command
  TensorFlow's notes are hidden unless TF_CPP_MIN_LOG_LEVEL=0

requeue: with --requeue the tasks restart up to 5 times, with SLURM_RESTART_COUNT=1 and so on, if
one of them ends with status 75, or after a preemption: SIGUSR2 to this command, or --preempt-after.
A preempted task receives SIGTERM, and SIGKILL 5 seconds later. As on Slurm, nothing restarts after
the time limit. A restart empties the output files.

restarts: with --restarts N, if a task fails (its exit status is neither 0 nor 75), the others end
too, and the job continues with a new step, with its own SLURM_STEP_ID and ports. The time limit is
the job's.

exit status: the highest of the tasks'; a task that a signal ended, and all tasks after a signal to
this command, count as 128 plus the signal's number (Ctrl-C: 130, time limit: 143); 2 if usage or
environment are wrong.

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
    help_ = "put the rank before each line (default: on the screen, not in files)"
    add("-l", "--label", action=argparse.BooleanOptionalAction, help=help_)
    help_ = (
        "where the output goes: a file name with %%t (rank), %%j (job id), %%s (step id), %%N "
        "(node's name), %%n (node's number), %%x (job name), %%u (user) or %%%%; all (the screen, "
        "default), none, or the rank of the only task to show"
    )
    add("-o", "--output", metavar="PATTERN", default="all", help=help_)
    what = "the first of those in CUDA_VISIBLE_DEVICES, else 0, 1 and so on"
    add = parser.add_argument_group("GPUs", what).add_mutually_exclusive_group().add_argument
    help_ = "GPUs of all tasks together; each task sees all; 0 hides all"
    add("-G", "--gpus", "--gpus-per-node", dest="gpus", type=int, metavar="N", help=help_)
    add("--gpus-per-task", type=int, metavar="N", help="GPUs of each task, which sees no other")
    add = parser.add_argument_group("end and restart").add_argument
    help_ = (
        "time limit: minutes, minutes:seconds, hours:minutes:seconds, days-hours[:minutes"
        "[:seconds]]; then SIGTERM, and SIGKILL after 5 seconds"
    )
    add("-t", "--time", metavar="TIME", help=help_)
    help_ = "send the tasks a signal S seconds (60) before the time limit"
    add("--signal", metavar="SIG[@S]", help=help_)
    # One option for each spelling: with an optional value argparse would take the next word for it.
    end = ("-K", "-K1", "--kill-on-bad-exit", "--kill-on-bad-exit=1")
    help_ = "end all tasks when one fails (default)"
    add(*end, dest="kill", action="store_true", default=True, help=help_)
    leave = ("-K0", "--kill-on-bad-exit=0", "--no-kill-on-bad-exit")
    help_ = "let the other tasks continue when one fails"
    add(*leave, dest="kill", action="store_false", help=help_)
    add("--requeue", action="store_true", help="restart the tasks where Slurm would requeue")
    help_ = "start a new step in the same job after a task has failed, at most N times (0)"
    add("--restarts", type=int, default=0, metavar="N", help=help_)
    help_ = "kill the task RANK (default: the last one) S seconds after the first start"
    add("--fail-after", type=_failure, metavar="S[:RANK]", help=help_)
    help_ = (
        "simulate a preemption S seconds after the first step of a training that uses "
        "BackupAndResume, ResumableLoop or termination_config: before it there is nothing to save"
    )
    add("--preempt-after", type=seconds, metavar="S", help=help_)
    add_command(parser)


def main(args: argparse.Namespace) -> int:
    """Runs the tasks to their end, and returns the highest exit status."""
    command = command_of(args)
    if not command:
        raise LaunchError("no command: slurm-resolver run -n 2 -- python train.py")
    check_range("-n", args.ntasks, 1, _LARGEST_COUNT)
    check_range("--gpus", args.gpus, 0, _LARGEST_COUNT)
    check_range("--gpus-per-task", args.gpus_per_task, 0, _LARGEST_COUNT)
    check_range("--restarts", args.restarts, 0, _LARGEST_COUNT)
    if shutil.which(command[0]) is None:
        raise LaunchError(f"{command[0]!r} is not a program that can be started here")
    return _run(args, command)


def _run(args: argparse.Namespace, command: List[str]) -> int:
    # Imported here: --help does not need them, and they take long.
    from slurm_resolver.local import RunOptions
    from slurm_resolver.local.environment import gpu_variables
    from slurm_resolver.local.job import LocalJob
    from slurm_resolver.preflight.job_checks import advise_on_nested_run
    from slurm_resolver.slurm.step import SlurmStep
    from slurm_resolver.slurm.time_limit import parse_time_and_signal

    limit, limit_signal = parse_time_and_signal(args.time, args.signal)
    if args.signal is not None and limit is None:
        _print_line("--signal without a time limit (--time) sends nothing, as on Slurm")
    fail_after = None
    if args.fail_after is not None:
        after, rank = args.fail_after
        fail_after = (after, args.ntasks - 1 if rank is None else rank)
        if fail_after[1] >= args.ntasks:
            raise LaunchError(
                f"--fail-after {after:g}:{rank}: expected a rank from 0 to {args.ntasks - 1}"
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
    with contextlib.suppress(SlurmResolverError):  # only the advice needs the variables
        advice = advise_on_nested_run(SlurmStep.read(), args.ntasks)
        if advice:
            _print_line(advice)
    return LocalJob(options, _print_line).run(os.environ)


def _print_line(message: str) -> None:
    # in one write: tasks may print lines at the same time
    sys.stderr.write(f"slurm-resolver run: {message}\n")
    sys.stderr.flush()


def _failure(text: str) -> Tuple[float, Optional[int]]:
    after, colon, rank = text.partition(":")
    if colon and not rank.isdecimal():
        raise argparse.ArgumentTypeError(f"{text!r}: expected seconds and a rank, as 20:1")
    return seconds(after), int(rank) if colon else None
