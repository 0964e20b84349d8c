"""`slurm-resolver sbatch`: prints a batch file as this project recommends it."""

from __future__ import annotations

import argparse
import sys

from slurm_resolver.cli.options import numbers_by_name
from slurm_resolver.errors import JobsError, LaunchError
from slurm_resolver.sbatch.script import batch_file
from slurm_resolver.sbatch.settings import DEFAULT_SIGNAL, DEFAULT_TIME, BatchSettings

DESCRIPTION = """\
Prints a complete batch file, with comments, that runs COMMAND on several nodes: checks before the
training, the end of all tasks when one fails, and, if asked for, a requeue. Nothing is submitted.
Options have sbatch's names, and their values go into the file as they are."""

EPILOG = """\
exit status: 0, or 2 for a value that sbatch or TensorFlow would refuse.

examples:
  slurm-resolver sbatch -N 4 --tasks-per-node 4 --gpus-per-node 4 -- python train.py > job.sbatch
  slurm-resolver sbatch -N 4 --tasks-per-node 4 --ps 2 --time 1-00 --requeue -- python train.py
  slurm-resolver sbatch -N 8 --restarts 5 --spare-nodes 1 --min-nodes 6 -- python train.py
  slurm-resolver sbatch -N 4 --gpus-per-node 4 --ps 2 --ps-nodes 1 --ps-partition cpu \\
      -- python train.py
  slurm-resolver sbatch -N 2 --exec --env-setup 'source ~/venv/bin/activate' -- python train.py"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds this subcommand's arguments; each has the name of its field in `BatchSettings`."""
    add = parser.add_argument_group("tasks").add_argument
    add("-N", "--nodes", type=int, default=1, metavar="N", help="nodes (1)")
    add(
        "--tasks-per-node",
        "--ntasks-per-node",
        dest="tasks_per_node",
        type=int,
        default=1,
        metavar="N",
        help="tasks on each node (1)",
    )
    add("-c", "--cpus-per-task", type=int, metavar="N", help="CPUs of each task")
    add("--gpus-per-node", metavar="[TYPE:]N", help="GPUs of each node, shared by its tasks")
    jobs = parser.add_argument_group("TensorFlow's jobs (default: all tasks are workers)")
    add = jobs.add_argument
    add("--ps", type=int, metavar="N", help="one chief, N parameter servers, the rest workers")
    add(
        "--jobs",
        type=numbers_by_name,
        metavar="JOB=N,…",
        help="tasks of each job; one may be -1: the rest",
    )
    add(
        "--ps-nodes",
        type=int,
        metavar="N",
        help="put the chief and the parameter servers on N further nodes, without GPUs, in a "
        "heterogeneous job; --nodes and --tasks-per-node are then the workers'",
    )
    add("--ps-partition", metavar="NAME", help="partition of these nodes (that of --partition)")
    add(
        "--exec",
        action="store_true",
        help="COMMAND reads TF_CONFIG, or takes hosts as arguments, instead of using "
        "SlurmClusterResolver: start it with slurm-resolver exec",
    )
    add = parser.add_argument_group("the job").add_argument
    add("-J", "--job-name", metavar="NAME", help="name (the script's)")
    add("-t", "--time", default=DEFAULT_TIME, metavar="TIME", help=f"time limit ({DEFAULT_TIME})")
    add("-p", "--partition", metavar="NAME", help="partition")
    add("-A", "--account", metavar="NAME", help="account to charge")
    add("-q", "--qos", metavar="NAME", help="quality of service")
    add("-C", "--constraint", metavar="LIST", help="features that the nodes must have")
    add(
        "--segment",
        type=int,
        metavar="N",
        help="N nodes at a time in one block of a block topology (from Slurm 24.11 on)",
    )
    add("--mem", metavar="SIZE", help="memory of each node, such as 64G; 0: all of it")
    add("--exclusive", action="store_true", help="share the nodes with no other job")
    add("-a", "--array", metavar="NUMBERS", help="an array of such jobs, such as 0-15%%4")
    add = parser.add_argument_group("restarts inside the allocation").add_argument
    add(
        "--restarts",
        type=int,
        metavar="N",
        help="start the training again on healthy nodes when a task or a node has failed, at most "
        "N times (slurm-resolver supervise)",
    )
    add("--spare-nodes", type=int, metavar="K", help="ask for K more nodes, which take their place")
    add("--min-nodes", type=int, metavar="M", help="else continue with so few, and fewer tasks")
    add = parser.add_argument_group("preemption and time limit").add_argument
    add("--requeue", action="store_true", help="continue the job after preemption or time limit")
    add(
        "--signal",
        metavar="SIGNAL[@SECONDS]",
        help="send the tasks a signal before the time limit (with --requeue: "
        f"{DEFAULT_SIGNAL}); with --requeue and parameter servers only the batch file gets it, as "
        "no task saves at one then",
    )
    add(
        "--max-restarts",
        type=int,
        metavar="N",
        help="have the batch file requeue the job at most so often (10; 100 with a ps)",
    )
    add = parser.add_argument_group("the script").add_argument
    add(
        "--env-setup",
        action="append",
        metavar="LINE",
        help="shell line that sets up the environment, such as 'source ~/venv/bin/activate' or "
        "'module load TensorFlow'",
    )
    add("--no-check", dest="check", action="store_false", help="no checks before the training")
    add(
        "--wait",
        type=int,
        default=120,
        metavar="SECONDS",
        help="wait for all tasks, in the checks and with --exec (120)",
    )
    parser.add_argument("command_line", nargs=argparse.REMAINDER, metavar="-- COMMAND [ARGUMENT …]")


def main(args: argparse.Namespace) -> int:
    """Prints the file, and returns 0."""
    values = {name: value for name, value in vars(args).items() if name in BatchSettings._fields}
    words = args.command_line
    values["command"] = words[1:] if words[:1] == ["--"] else words
    if args.ps is not None:
        if args.jobs is not None:
            raise LaunchError(
                "--ps is short for --jobs chief=1,ps=N,worker=-1: expected one of them"
            )
        if args.ps < 1:
            raise LaunchError(f"--ps {args.ps}: expected a whole number from 1 on")
        values["jobs"] = {"chief": 1, "ps": args.ps, "worker": -1}
    values["env_setup"] = args.env_setup or ()
    # UTF-8 whatever the locale is: the words of the command must arrive as they are
    try:
        text = batch_file(BatchSettings(**values))
    except (JobsError, LaunchError) as error:
        given = "--jobs " + ",".join(f"{job}={count}" for job, count in (args.jobs or {}).items())
        if args.ps is not None:
            given = f"--ps {args.ps}"
        jobs = f"jobs={values['jobs']!r}"
        message = str(error).replace(f"{jobs}:", f"{given}:").replace(jobs, f"{given}: the jobs")
        raise type(error)(message) from None
    sys.stdout.buffer.write(text.encode())
    return 0
