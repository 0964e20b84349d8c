"""`slurm-resolver sbatch`: prints a batch file with this project's recommendations."""

from __future__ import annotations

import argparse
import re
import sys
from typing import Dict

from slurm_resolver.cli.options import (
    add_command,
    add_tasks_per_node,
    command_of,
    count,
    numbers_by_name,
)
from slurm_resolver.sbatch.script import batch_file
from slurm_resolver.sbatch.settings import DEFAULT_SIGNAL, DEFAULT_TIME, SIGNALS, BatchSettings

DESCRIPTION = """\
Prints a complete batch file, with comments, that runs COMMAND on several nodes: it checks the step
before the training, ends all tasks when one fails and, if you ask for it, requeues the job. Nothing
is submitted. The options have sbatch's names, and their values go into the file unchanged."""

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
    number = count(1)
    add("-N", "--nodes", type=number, default=1, metavar="N", help="nodes (1)")
    add_tasks_per_node(add)
    add("-c", "--cpus-per-task", type=number, metavar="N", help="CPUs of each task")
    add("--gpus-per-node", metavar="[TYPE:]N", help="GPUs of each node, shared by its tasks")
    jobs = parser.add_argument_group("TensorFlow's jobs (default: all tasks are workers)")
    add = jobs.add_mutually_exclusive_group().add_argument
    help_ = "one chief, N parameter servers, the rest workers"
    add("--ps", dest="jobs", type=_servers, metavar="N", help=help_)
    help_ = "tasks of each job; one may be -1: the rest"
    add("--jobs", type=numbers_by_name, metavar="JOB=N,…", help=help_)
    add = jobs.add_argument
    help_ = (
        "put the chief and the parameter servers on N further nodes without GPUs, in a "
        "heterogeneous job; --nodes and --tasks-per-node are then the workers'"
    )
    add("--ps-nodes", type=number, metavar="N", help=help_)
    add("--ps-partition", metavar="NAME", help="partition of these nodes (that of --partition)")
    help_ = (
        "COMMAND reads TF_CONFIG or takes hosts as arguments, and does not use "
        "SlurmClusterResolver: start it with slurm-resolver exec"
    )
    add("--exec", action="store_true", help=help_)
    add = parser.add_argument_group("the job").add_argument
    add("-J", "--job-name", metavar="NAME", help="name (the script's)")
    add("-t", "--time", default=DEFAULT_TIME, metavar="TIME", help=f"time limit ({DEFAULT_TIME})")
    add("-p", "--partition", metavar="NAME", help="partition")
    add("-A", "--account", metavar="NAME", help="account to charge")
    add("-q", "--qos", metavar="NAME", help="quality of service")
    add("-C", "--constraint", metavar="LIST", help="features that the nodes must have")
    add("--mem", metavar="SIZE", help="memory of each node, such as 64G; 0: all of it")
    add("--exclusive", action="store_true", help="share the nodes with no other job")
    add("-a", "--array", metavar="NUMBERS", help="an array of such jobs, such as 0-15%%4")
    add = parser.add_argument_group("restarts inside the allocation").add_argument
    help_ = (
        "restart the training on healthy nodes after a task or a node has failed, at most N times "
        "(slurm-resolver supervise)"
    )
    add("--restarts", type=number, metavar="N", help=help_)
    help_ = "ask for K more nodes, to replace failed ones"
    add("--spare-nodes", type=number, metavar="K", help=help_)
    help_ = "without spare nodes, continue with at least M nodes and fewer tasks"
    add("--min-nodes", type=number, metavar="M", help=help_)
    add = parser.add_argument_group("preemption and time limit").add_argument
    add("--requeue", action="store_true", help="continue the job after preemption or time limit")
    help_ = (
        f"send the tasks a signal before the time limit (with --requeue: {DEFAULT_SIGNAL}). With "
        "--requeue and parameter servers, only the batch file receives it: no task saves on it"
    )
    add("--signal", type=_signal, metavar="SIGNAL[@SECONDS]", help=help_)
    help_ = "let the batch file requeue the job at most N times (10; 100 with a ps)"
    add("--max-restarts", type=number, metavar="N", help=help_)
    add = parser.add_argument_group("the script").add_argument
    help_ = (
        "shell line that sets up the environment, such as 'source ~/venv/bin/activate' or "
        "'module load TensorFlow'; can be repeated"
    )
    add("--env-setup", action="append", default=[], metavar="LINE", help=help_)
    add("--no-check", dest="check", action="store_false", help="no checks before the training")
    help_ = "wait for all tasks, in the checks and with --exec (120)"
    add("--wait", type=number, default=120, metavar="SECONDS", help=help_)
    add_command(parser)


def _servers(text: str) -> Dict[str, int]:
    return {"chief": 1, "ps": count(1)(text), "worker": -1}


def _signal(text: str) -> str:
    if not re.fullmatch(rf"(SIG)?({'|'.join(SIGNALS)})(@\d{{1,5}})?", text, re.ASCII):
        expected = f"one of {', '.join(SIGNALS)}, with the seconds before the end: USR1@120"
        raise argparse.ArgumentTypeError(f"{text!r}: expected {expected}")
    return text


def main(args: argparse.Namespace) -> int:
    """Prints the file, and returns 0."""
    values = {name: value for name, value in vars(args).items() if name in BatchSettings._fields}
    text = batch_file(BatchSettings(**{**values, "command": command_of(args)}))
    sys.stdout.buffer.write(text.encode())  # whatever the locale is
    return 0
