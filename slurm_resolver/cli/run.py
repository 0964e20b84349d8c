"""`slurm-resolver run`: a step of several tasks on this machine, without Slurm."""

from __future__ import annotations

import os
from argparse import Namespace

from slurm_resolver.cli.shared_options import command_of, values_of
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


OPTIONS = {  # most have the name of their field in `RunOptions`
    "-n --ntasks N": "tasks (1)",
    "-l --label": "put the rank before each line (default)",
    "--no-label": "put no rank before the lines",
    "-G --gpus --gpus-per-node N": "GPUs of all tasks together; each task sees all; 0 hides all",
    "-t --time TIME": "time limit: minutes, minutes:seconds, hours:minutes:seconds or days-hours",
    "--signal SIG[@S]": "send the tasks a signal S seconds (60) before the time limit",
    # One option for each spelling: with an optional value argparse would take the next word for it.
    "-K -K1 --kill-on-bad-exit --kill-on-bad-exit=1": "end all tasks when one fails (default)",
    "--no-kill-on-bad-exit -K0 --kill-on-bad-exit=0": "let the other tasks continue when one fails",
    "--requeue": "restart the tasks where Slurm would requeue",
    "--restarts N": (
        "start a new step in the same job after a task has failed, at most N times (0)"
    ),
    "--fail-after SECONDS": "kill the task with the highest rank this long after the first start",
    "--preempt-after SECONDS": "simulate a preemption this long after the training's first step",
    "command_line -- COMMAND [ARGUMENT …]": "the program of each task",
}


def main(args: Namespace) -> int:
    """Runs the tasks to their end, and returns the highest exit status."""
    # Imported here: --help does not need them, and they take long.
    import asyncio

    from slurm_resolver.local import RunOptions
    from slurm_resolver.local.environment import gpu_variables
    from slurm_resolver.local.job import run_job
    from slurm_resolver.slurm.time_limit import parse_signal, parse_time

    options = RunOptions(
        **values_of(args, RunOptions),
        command=command_of(args),
        gpu_variables=gpu_variables(args.gpus, os.environ),
        time_limit=None if args.time is None else parse_time(args.time),
        limit_signal=None if args.signal is None else parse_signal(args.signal),
    )
    return asyncio.run(run_job(options))
