"""`slurm-resolver sbatch`: prints a batch file with this project's recommendations."""

from __future__ import annotations

import io
import sys
from argparse import Namespace

from slurm_resolver.cli.shared_options import command_of, values_of
from slurm_resolver.sbatch.script import batch_file
from slurm_resolver.sbatch.settings import DEFAULT_SIGNAL, DEFAULT_TIME, BatchSettings

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

SLURMS_OPTIONS = (
    ". Give Slurm's other options to sbatch, as in sbatch --partition=gpu job.sbatch, or add them "
    "to the file as #SBATCH lines"
)


OPTIONS = {  # each has the name of its field in `BatchSettings`
    "-N --nodes N": "nodes (1)",
    "--tasks-per-node --ntasks-per-node N": "tasks on each node (1)",
    "-c --cpus-per-task N": "CPUs of each task",
    "--gpus-per-node [TYPE:]N": "GPUs of each node, divided among its tasks",
    "-t --time TIME": f"time limit ({DEFAULT_TIME})",
    "--ps N": "one chief, N parameter servers, the rest workers (default: all are workers)",
    "--restarts N": (
        "restart the step on healthy nodes after a task or a node has failed, at most N times (0)"
    ),
    "--spare-nodes N": "ask for N more nodes, to replace failed ones",
    "--min-nodes N": "if no spare node is left, continue with at least N nodes and fewer tasks",
    "--requeue": "continue after preemption or time limit, if the program saves and resumes",
    "--signal SIGNAL[@SECONDS]": (
        f"the signal before the time limit (with --requeue: {DEFAULT_SIGNAL})"
    ),
    "--no-check": "no checks before the training",
    "command_line -- COMMAND [ARGUMENT …]": "the program that trains",
}


def main(args: Namespace) -> int:
    """Prints the file, and returns 0."""
    settings = BatchSettings(
        command=command_of(args, starts_here=False), **values_of(args, BatchSettings)
    )
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(encoding="utf-8", errors="strict")  # whatever the locale is
    print(batch_file(settings), end="")
    return 0
