"""`slurm-resolver sbatch`: prints a batch file with this project's recommendations."""

from __future__ import annotations

import argparse
import io
import re
import sys

from slurm_resolver.cli.options import (
    add_command,
    add_tasks_per_node,
    command_of,
    count,
    numbers_by_name,
    values_of,
)
from slurm_resolver.sbatch.script import batch_file
from slurm_resolver.sbatch.settings import DEFAULT_SIGNAL, DEFAULT_TIME, SIGNALS, BatchSettings

DESCRIPTION = """\
Prints a complete batch file, with comments, that runs COMMAND on several nodes: it checks the step
before the training, ends all tasks when one fails and, if you ask for it, requeues the job. Nothing
is submitted. Give the other options of sbatch to sbatch: sbatch --partition=gpu job.sbatch"""

EPILOG = """\
exit status: 0, or 2 for a value that sbatch or TensorFlow would refuse.

examples:
  slurm-resolver sbatch -N 4 --tasks-per-node 4 --gpus-per-node 4 -- python train.py > job.sbatch
  slurm-resolver sbatch -N 4 --tasks-per-node 4 --ps 2 --time 1-00 --requeue -- python train.py
  slurm-resolver sbatch -N 8 --restarts 5 --spare-nodes 1 --min-nodes 6 -- python train.py"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds this subcommand's arguments; each has the name of its field in `BatchSettings`."""
    add = parser.add_argument
    number = count(1)
    add("-N", "--nodes", type=number, default=1, metavar="N", help="nodes (1)")
    add_tasks_per_node(add)
    add("-c", "--cpus-per-task", type=number, metavar="N", help="CPUs of each task")
    add("--gpus-per-node", metavar="[TYPE:]N", help="GPUs of each node, shared by its tasks")
    add("-t", "--time", default=DEFAULT_TIME, metavar="TIME", help=f"time limit ({DEFAULT_TIME})")
    jobs = parser.add_mutually_exclusive_group().add_argument
    jobs(
        "--ps",
        dest="jobs",
        type=_servers,
        metavar="N",
        help="one chief, N parameter servers, the rest workers (default: all are workers)",
    )
    jobs(
        "--jobs",
        type=numbers_by_name,
        metavar="JOB=N,…",
        help="tasks of each job; one may be -1: the rest",
    )
    add(
        "--restarts",
        type=number,
        metavar="N",
        help="restart the step on healthy nodes after a task or a node has failed, at most N times",
    )
    add(
        "--spare-nodes",
        type=number,
        metavar="K",
        help="ask for K more nodes, to replace failed ones",
    )
    add(
        "--min-nodes",
        type=number,
        metavar="M",
        help="without spare nodes, continue with at least M nodes and fewer tasks",
    )
    add("--requeue", action="store_true", help="continue the job after preemption or time limit")
    add(
        "--signal",
        type=_signal,
        metavar="SIGNAL[@SECONDS]",
        help=f"sent to the tasks before the time limit (with --requeue: {DEFAULT_SIGNAL})",
    )
    add("--no-check", dest="check", action="store_false", help="no checks before the training")
    add_command(parser)


def _servers(text: str) -> dict[str, int]:
    return {"chief": 1, "ps": count(1)(text), "worker": -1}


def _signal(text: str) -> str:
    if not re.fullmatch(rf"(SIG)?({'|'.join(SIGNALS)})(@\d{{1,5}})?", text, re.ASCII):
        raise argparse.ArgumentTypeError(
            f"{text!r}: expected one of {', '.join(SIGNALS)}, with the seconds before the end: "
            "USR1@120"
        )
    return text


def main(args: argparse.Namespace) -> int:
    """Prints the file, and returns 0."""
    values = values_of(args, BatchSettings._fields)
    text = batch_file(BatchSettings(**{**values, "command": command_of(args)}))
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(encoding="utf-8", errors="strict")  # whatever the locale is
    sys.stdout.write(text)
    return 0
