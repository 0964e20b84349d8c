"""`slurm-resolver run`: a step of several tasks on this machine, without Slurm."""

from __future__ import annotations

import os
from argparse import BooleanOptionalAction, Namespace

from slurm_resolver.cli.shared_options import (
    OptionAdder,
    add_command,
    command_of,
    number_type,
    options_of,
)
from slurm_resolver.local import IMITATED_SLURM

DESCRIPTION = f"""\
Starts COMMAND as N tasks on this machine, each with the variables that srun sets in a step of one
node. Most options are srun's, with their meaning in Slurm {IMITATED_SLURM}."""

EPILOG = """\
exit status: the highest of the tasks', 128 plus the signal's number for a signal; 2 if usage or
environment is wrong.

examples:
  slurm-resolver run -n 4 --gpus 4 -- python train.py
  slurm-resolver run -n 2 -t 1:00 --signal USR1@30 -- python train.py
  slurm-resolver run -n 2 --requeue --preempt-after 20 -- python train.py"""

SLURMS_OPTIONS = (
    ". The tasks run on this machine, without Slurm: leave out options for its nodes, partitions, "
    "accounts or memory"
)


def add_arguments(add: OptionAdder) -> None:
    """Adds this subcommand's arguments; most have the name of their field in `RunOptions`."""
    add("-n --ntasks N", "tasks (1)", dest="num_tasks", type=number_type(1, 4096), default=1)
    add(
        "-l --label",
        "put the rank before each line (default)",
        action=BooleanOptionalAction,
        default=True,
    )
    add(
        "-G --gpus --gpus-per-node N",
        "GPUs of all tasks together; each task sees all; 0 hides all",
        type=number_type(0, 4096),
    )
    add(
        "-t --time TIME",
        "time limit: minutes, minutes:seconds, hours:minutes:seconds or days-hours",
        default="0",  # none
    )
    add("--signal SIG[@S]", "send the tasks a signal S seconds (60) before the time limit")
    # One option for each spelling: with an optional value argparse would take the next word for it.
    add(
        "-K -K1 --kill-on-bad-exit --kill-on-bad-exit=1",
        "end all tasks when one fails (default)",
        default=True,
    )
    add(
        "-K0 --kill-on-bad-exit=0 --no-kill-on-bad-exit",
        "let the other tasks continue when one fails",
        dest="kill_on_bad_exit",
        action="store_false",
    )
    add("--requeue", "restart the tasks where Slurm would requeue")
    add(
        "--restarts N",
        "start a new step in the same job after a task has failed, at most N times (0)",
        type=number_type(0),
        default=0,
    )
    add(
        "--fail-after SECONDS",
        "kill the task with the highest rank this long after the first start",
    )
    add(
        "--preempt-after SECONDS",
        "simulate a preemption this long after the training's first step",
    )
    add_command(add)


def main(args: Namespace) -> int:
    """Runs the tasks to their end, and returns the highest exit status."""
    # Imported here: --help does not need them, and they take long.
    import asyncio

    from slurm_resolver.local import RunOptions
    from slurm_resolver.local.environment import gpu_variables
    from slurm_resolver.local.job import run_job
    from slurm_resolver.slurm.time_limit import parse_signal, parse_time

    command = command_of(args)
    options = options_of(
        args,
        RunOptions,
        command=command,
        gpu_variables=gpu_variables(args.gpus, os.environ),
        time_limit=parse_time(args.time),
        limit_signal=None if args.signal is None else parse_signal(args.signal),
    )
    return asyncio.run(run_job(options))
