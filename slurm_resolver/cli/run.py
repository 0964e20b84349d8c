"""`slurm-resolver run`: a step of several tasks on this machine, where there is no Slurm."""

from __future__ import annotations

import argparse
import os
import shutil
import signal
import sys

from slurm_resolver.errors import LaunchError

DESCRIPTION = """\
Starts COMMAND as N tasks on this machine, each with the variables that srun sets in a step of one
node (localhost). Lines of output carry the rank of their task. When a task fails, or on Ctrl-C,
all are ended; the exit status is the worst of the tasks'."""

EPILOG = """\
examples:
  slurm-resolver run -n 2 -- python train.py
  slurm-resolver run -n 4 --cpus 2 -- python train.py --epochs 3"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds this subcommand's arguments."""
    parser.add_argument("-n", "--ntasks", type=int, default=1, metavar="N", help="tasks (1)")
    parser.add_argument(
        "-c",
        "--cpus",
        "--cpus-per-task",
        dest="cpus",
        type=int,
        metavar="C",
        help="CPUs of each task: sets SLURM_CPUS_PER_TASK, and binds where there are enough",
    )
    parser.add_argument("command_line", nargs=argparse.REMAINDER, metavar="-- COMMAND [ARGUMENT …]")


def main(args: argparse.Namespace) -> int:
    """Runs the tasks to their end, and returns the worst exit status."""
    command = args.command_line[1:] if args.command_line[:1] == ["--"] else args.command_line
    if not command:
        raise LaunchError("no command: slurm-resolver run -n 2 -- python train.py")
    if not 1 <= args.ntasks <= 4096:
        raise LaunchError(f"-n {args.ntasks}: expected a number of tasks from 1 to 4096")
    if args.cpus is not None and not 1 <= args.cpus <= 4096:
        raise LaunchError(f"--cpus {args.cpus}: expected a number of CPUs from 1 to 4096")
    if shutil.which(command[0]) is None:
        raise LaunchError(f"{command[0]!r} is no program that can be started here")
    from slurm_resolver.local_step import LocalStep  # slow to import, and only needed here

    step = LocalStep(args.ntasks, args.cpus)

    def stop(number: int, frame: object) -> None:
        step.stop(signal.Signals(number))

    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, stop)
    step.start(command, os.environ)
    status = step.wait()
    for line in step.summary():
        print(f"slurm-resolver run: {line}", file=sys.stderr)
    return status
