"""`slurm-resolver supervise`: srun, restarted inside the allocation after a failure."""

from __future__ import annotations

import os
from argparse import Namespace

from slurm_resolver.cli.shared_options import command_of, values_of
from slurm_resolver.errors import LaunchError
from slurm_resolver.timeouts import Timeouts

DESCRIPTION = """\
For a batch file, instead of srun: runs a step on healthy nodes of this allocation, and restarts it
there after a task or a node has failed. `slurm-resolver sbatch --restarts 3` prints such a file."""

EPILOG = """\
exit status: 0; else that of the task that failed first, 128 plus the signal's number if a signal
ended it; 75 with --requeue if nodes or time run short; 2 if usage or environment is wrong.

examples:
  slurm-resolver supervise --nodes 4 -- srun --label --kill-on-bad-exit=1 python train.py
  slurm-resolver supervise --restarts 5 --nodes 4 --min-nodes 3 -- srun --label python train.py"""


OPTIONS = {  # each has the name of its field in `SupervisorOptions`
    "--restarts N": "restart at most N times (3)",
    "-N --nodes N": "nodes of the step (all of the job's)",
    "--min-nodes N": "continue with at least N nodes if fewer than --nodes are healthy",
    "--tasks-per-node --ntasks-per-node N": "tasks on each node (1)",
    "--requeue": "end with status 75, for a requeue, if nodes or time run short",
    "--pause SECONDS": f"seconds to wait before restarting ({Timeouts.pause:g})",
    "--least-time SECONDS": (
        f"restart only if at least this much time is left ({Timeouts.least_time:g})"
    ),
    "--watch SECONDS": (
        "how often another node checks whether this node has failed (30; 0: never)"
    ),
    "--check": "before each start, leave out nodes that fail or are slow in check --collective",
    "command_line -- srun [OPTION …] PROGRAM": "the step",
}


def main(args: Namespace) -> int:
    """Runs and restarts the step, and returns the exit status."""
    from slurm_resolver.slurm.step_variables import SlurmStep
    from slurm_resolver.supervision.supervisor import Supervisor, SupervisorOptions

    command = command_of(args, starts_here=False)
    if args.nodes and (args.min_nodes or 0) > args.nodes:
        raise LaunchError(f"--min-nodes {args.min_nodes}: expected at most --nodes {args.nodes}")
    if os.path.basename(command[0]) != "srun" or len(command) < 2:
        raise LaunchError(
            f"{' '.join(command)!r}: expected srun with its options and a program, as in "
            "slurm-resolver supervise --nodes 4 -- srun --label python train.py"
        )
    step = SlurmStep.read()
    if not step.job_id:
        raise LaunchError(
            "SLURM_JOB_ID is not set: run this command in a batch file, or in a shell of salloc. "
            "slurm-resolver sbatch --restarts 3 -- python train.py prints such a file."
        )
    options = SupervisorOptions(command=command_of(args), **values_of(args, SupervisorOptions))
    return Supervisor(options, step).run()
