"""`slurm-resolver supervise`: srun, started again inside the allocation when it has failed."""

from __future__ import annotations

import argparse
import os
import shutil
from typing import TYPE_CHECKING

from slurm_resolver.errors import LaunchError

if TYPE_CHECKING:
    from slurm_resolver.supervision.supervisor import SupervisorOptions

DESCRIPTION = """\
For a batch file, in the place of srun: runs a step on healthy nodes of this allocation, and starts
it again there when a task or a node has failed. Get the job with more nodes than the step has,
spare ones, and with sbatch --no-kill, or a node that fails ends it all. `slurm-resolver sbatch
--restarts 3` prints such a file."""

EPILOG = """\
not started again: a step that ended with status 0, 75 (which asks for a requeue) or 143 (saved on a
signal); one that was cancelled; any after SIGTERM, SIGINT, SIGHUP, SIGQUIT, SIGUSR1 or SIGUSR2 to
this command, which are passed on to srun; and an error that came twice without progress in between:
the step went on from the same checkpoint, or failed within 10 minutes.

srun gets --nodes, --ntasks, --ntasks-per-node and --nodelist in front of its own options, and its
output is passed on as it is. With srun --label the error of the task that failed is found. A step
of a heterogeneous job is not started again: srun runs once, as it is given.

exit status: 0; else that of the task that failed first, 128 and the signal's number for one that a
signal has ended; 75 where --requeue is given, and nodes or time are too short; 2 when usage or
environment are wrong.

examples:
  slurm-resolver supervise --nodes 4 -- srun --label --kill-on-bad-exit=1 python train.py
  slurm-resolver supervise --restarts 5 --nodes 4 --min-nodes 3 --ntasks-per-node 4 --requeue -- \\
      srun --label python train.py"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds this subcommand's arguments; each has the name of its field in `SupervisorOptions`."""
    add = parser.add_argument
    add("--restarts", type=int, default=3, metavar="N", help="start again at most so often (3)")
    add("-N", "--nodes", type=int, metavar="N", help="nodes of the step (all of the job's)")
    add("--min-nodes", type=int, metavar="N", help="go on with so few where more are not healthy")
    add(
        "--ntasks-per-node",
        "--tasks-per-node",
        dest="tasks_per_node",
        type=int,
        default=1,
        metavar="N",
        help="tasks on each node (1)",
    )
    add(
        "--requeue",
        action="store_true",
        help="end with status 75 where too few nodes are left, the time limit is near, or the job "
        "is preempted: the batch file then requeues the job",
    )
    add(
        "--pause",
        type=float,
        default=2.0,
        metavar="SECONDS",
        help="from the end of a step to the next start (2)",
    )
    add(
        "--least-time",
        type=float,
        default=60.0,
        metavar="SECONDS",
        help="start again only where the time limit is as far away (60)",
    )
    add(
        "--watch",
        type=float,
        default=30.0,
        metavar="SECONDS",
        help="how often another node looks whether this one has failed, and then requeues the job, "
        "or cancels it without --requeue (30; 0: never, and it runs on up to its time limit)",
    )
    add("command_line", nargs=argparse.REMAINDER, metavar="-- srun [OPTION …] PROGRAM")


def main(args: argparse.Namespace) -> int:
    """Runs the step to its last end, and returns the exit status."""
    from slurm_resolver.slurm.step import SlurmStep
    from slurm_resolver.supervision.step import Signals
    from slurm_resolver.supervision.supervisor import Supervisor, SupervisorOptions

    values = {key: value for key, value in vars(args).items() if key in SupervisorOptions._fields}
    words = args.command_line
    values["command"] = words[1:] if words[:1] == ["--"] else words
    options = SupervisorOptions(**values)
    _check(options)
    step = SlurmStep.read()
    if step.job_id is None:
        raise LaunchError(
            "SLURM_JOB_ID is not set: expected to be called by a batch file, or in a shell of "
            "salloc. slurm-resolver sbatch --restarts 3 -- python train.py prints such a file."
        )
    return Supervisor(options, step, Signals()).run()


def _check(options: SupervisorOptions) -> None:
    counts = {"restarts": 0, "nodes": 1, "min_nodes": 1, "tasks_per_node": 1}
    for name, least in counts.items():
        count = getattr(options, name)
        if count is not None and not least <= count <= 1_000_000:
            raise _refused(name, count, f"a whole number from {least} on")
    for name in ("pause", "least_time", "watch"):
        seconds = getattr(options, name)
        if not 0 <= seconds < 1_000_000:
            raise _refused(name, seconds, "seconds, 0 or more")
    if options.min_nodes is not None and options.min_nodes > (options.nodes or options.min_nodes):
        raise _refused("min_nodes", options.min_nodes, f"at most --nodes {options.nodes}")
    command = options.command
    if not command or os.path.basename(command[0]) != "srun" or len(command) < 2:
        raise LaunchError(
            f"{' '.join(command)!r}: expected srun with its options and a program, as in "
            "slurm-resolver supervise --nodes 4 -- srun --label python train.py"
        )
    if shutil.which(command[0]) is None:
        raise LaunchError(f"{command[0]!r} is not a program that can be started here")


def _refused(name: str, value: object, expected: str) -> LaunchError:
    option = name.replace("tasks_per", "ntasks_per").replace("_", "-")
    return LaunchError(f"--{option} {value}: expected {expected}.")
