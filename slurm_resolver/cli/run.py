"""`slurm-resolver run`: a step of several tasks on this machine, where there is no Slurm."""

from __future__ import annotations

import argparse
import contextlib
import functools
import os
import shutil
import signal
import sys
from typing import Callable, Dict, List, Optional

from slurm_resolver.cli.run_options import add_end_options, add_gpu_options, add_output_options
from slurm_resolver.cli.srun_options import add_options_only_for_slurm, no_input, one_node
from slurm_resolver.errors import LaunchError, SlurmResolverError
from slurm_resolver.local import IMITATED_SLURM
from slurm_resolver.version import __version__

DESCRIPTION = f"""\
Starts COMMAND as N tasks on this machine, each with the variables that srun sets in a step of one
node (localhost). The options are srun's, and do what they do in Slurm {IMITATED_SLURM}. When a task
fails, or on Ctrl-C, all tasks are asked to end, and killed 5 seconds later (Slurm: KillWait, 30 by
default) or on a second Ctrl-C."""

EPILOG = """\
differences from srun:
  each line on the screen begins with its task's rank (srun: with -l), and lines never mix
  a task that fails ends the others (srun: with -K)
  -t is exact to the second (srun rounds it up to minutes)
  --requeue starts the tasks again, at once (sbatch: the batch script)
  only variables hide GPUs, so that a program can still reach those of other tasks
  tasks read nothing from standard input (as with srun --input none)
  a signal to this command asks the tasks to end (srun: kills them); SIGUSR1 goes to the tasks, as
  there, and SIGUSR2 is a preemption
  GPUs are all of one type: that of --gpus a100:2 is not looked at

not simulated, and an error: several nodes; memory and other resources that Slurm limits; the
queue; what daemons do (prolog, MPI, propagation); binding to listed GPUs or CPUs (map_gpu,
mask_gpu, map_cpu, mask_cpu); --multi-prog, --export, --pty, --wait.

requeue: with --requeue the tasks start again, with SLURM_RESTART_COUNT=1 and so on, when one of
them ends with a status of --requeue-exit, or after a preemption, which is SIGUSR2 to this command,
or --preempt-after. That counts from the first step of a training which uses BackupAndResume,
ResumableLoop or termination_config: earlier there is nothing to save. A preempted task gets
SIGTERM, and SIGKILL 5 seconds later. After its time limit nothing is started again, here as on
Slurm. A restart empties the output files, as a requeue on Slurm does, unless --open-mode=append.

restarts: with --restarts N, when a task has failed (its exit status is not 0, nor one of
--requeue-exit), the others end as well, and the job goes on with a new step, which has its own
SLURM_STEP_ID and ports: as in an allocation that outlives its step. The time limit is the job's.
--fail-after kills a task to try it. An error that came twice without progress in between ends the
job, as with slurm-resolver supervise, also where --output or --error names files.

exit status: the highest of the tasks'; a task that a signal ended, and all tasks ended by a signal
to this command, count as 128 and the signal's number (Ctrl-C: 130, time limit: 143); 2 when usage
or environment are wrong.

examples:
  slurm-resolver run -n 2 -- python train.py
  slurm-resolver run -n 4 --cpus-per-task 2 --gpus-per-task 1 -- python train.py --epochs 3
  slurm-resolver run -n 2 -o 'rank-%t.log' -t 1:00 --signal USR1@30 -- python train.py
  slurm-resolver run -n 2 --requeue --preempt-after 20 -- python train.py
  slurm-resolver run -n 2 --restarts 2 --fail-after 20:1 -- python train.py"""

_LARGEST_COUNT = 4096


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds this subcommand's arguments."""
    add = parser.add_argument
    add("-n", "--ntasks", type=int, default=1, metavar="N", help="tasks (1)")
    add("-N", "--nodes", type=one_node, metavar="1", help="nodes: only 1 can be simulated")
    add(
        "-c",
        "--cpus",
        "--cpus-per-task",
        dest="cpus",
        type=int,
        metavar="C",
        help="CPUs of each task: sets SLURM_CPUS_PER_TASK, and binds tasks if there are enough",
    )
    add(
        "--cpu-bind",
        "--cpu_bind",
        metavar="HOW",
        help="none, cores or threads; verbose,HOW also prints each task's CPUs",
    )
    add(
        "-m",
        "--distribution",
        metavar="HOW",
        help="sets SLURM_DISTRIBUTION; on one node each gives the same layout",
    )
    add("-J", "--job-name", metavar="NAME", help="SLURM_JOB_NAME (the command's name)")
    add("-D", "--chdir", metavar="DIR", help="the tasks' working directory")
    add_gpu_options(parser)
    add_output_options(parser)
    add_end_options(parser)
    add("-i", "--input", type=no_input, metavar="none", help="only none, the default here")
    # Accepted, and without effect, as nothing is buffered here.
    add("-u", "--unbuffered", action="store_true", help=argparse.SUPPRESS)
    version = f"slurm-resolver {__version__}, as srun of Slurm {IMITATED_SLURM}"
    add("-V", "--version", action="version", version=version, help="say which srun this imitates")
    add("--usage", action="help", help=argparse.SUPPRESS)
    add("command_line", nargs=argparse.REMAINDER, metavar="-- COMMAND [ARGUMENT …]")
    add_options_only_for_slurm(parser)


def main(args: argparse.Namespace) -> int:
    """Runs the tasks to their end, and returns the worst exit status."""
    command = args.command_line[1:] if args.command_line[:1] == ["--"] else args.command_line
    if not command:
        raise LaunchError("no command: slurm-resolver run -n 2 -- python train.py")
    _check_range("-n", args.ntasks, "tasks", 1)
    _check_range("--cpus", args.cpus, "CPUs", 1)
    _check_range("--max-restarts", args.max_restarts, "restarts", 0)
    _check_range("--restarts", args.restarts, "restarts", 0)
    directory = args.chdir or os.curdir
    if not os.path.isdir(directory):
        raise LaunchError(f"--chdir {args.chdir!r} is not a directory")
    # A relative path counts from the tasks' directory.
    program = os.path.join(directory, command[0]) if os.sep in command[0] else command[0]
    if shutil.which(program) is None:
        raise LaunchError(f"{command[0]!r} is not a program that can be started here")
    return _run(args, command)


def _run(args: argparse.Namespace, command: List[str]) -> int:
    # slow to import, and only needed here
    from slurm_resolver.local.cpus import bind_cpus
    from slurm_resolver.local.environment import distribution_variables
    from slurm_resolver.local.gpus import GpuRequest, srun_gpu_variables
    from slurm_resolver.local.job import LocalJob, RequeueOptions
    from slurm_resolver.local.output import OutputOptions
    from slurm_resolver.local.planned_preemption import planned_preemption
    from slurm_resolver.local.signal_thread import call_on_signals, read_ignored_signals
    from slurm_resolver.local.step import FORWARDED
    from slurm_resolver.local.step_options import StepOptions, planned_failure
    from slurm_resolver.local.tres import gpu_count, task_resources
    from slurm_resolver.preflight.lonely_step import advise_on_nested_run
    from slurm_resolver.slurm.step import SlurmStep
    from slurm_resolver.slurm.time_limit import parse_time_and_signal
    from slurm_resolver.supervision.policy import LocalFailures

    limit, limit_signal = parse_time_and_signal(args.time, args.signal)
    if args.signal is not None and limit is None:
        _print_line("--signal without a time limit (--time) sends nothing, as on Slurm")
    ignored = set() if args.ignore_signals is None else read_ignored_signals(args.ignore_signals)
    resources = task_resources(args.tres_per_task, args.cpus, args.gpus_per_task)
    told = {
        "SLURM_GPUS": args.gpus,
        "SLURM_GPUS_PER_NODE": args.gpus_per_node,
        "SLURM_TRES_PER_TASK": resources.text,
        "SLURM_OOM_KILL_STEP": args.oom_kill_step,
    }
    request = GpuRequest(
        None if args.gpus is None else gpu_count("--gpus", args.gpus),
        None if args.gpus_per_node is None else gpu_count("--gpus-per-node", args.gpus_per_node),
        resources.gpus,
        args.gpu_bind,
    )
    gpus = srun_gpu_variables(request, args.ntasks, os.environ)
    cpus = bind_cpus(args.cpu_bind, args.ntasks, resources.cpus, sorted(os.sched_getaffinity(0)))
    options = StepOptions(
        command,
        args.ntasks,
        resources.cpus,
        job_name=args.job_name,
        directory=args.chdir,
        cpus=cpus.cpus,
        variables={
            **{name: value for name, value in told.items() if value is not None},
            **distribution_variables(args.distribution),
            **cpus.variables,
        },
        task_variables=gpus.variables,
        removed_variables=gpus.removed,
        output=OutputOptions(args.output, args.error, args.label, args.open_mode.startswith("a")),
        time_limit=limit,
        limit_signal=limit_signal,
        preemption=planned_preemption(args.preempt_after),
        failure=planned_failure(args.fail_after, args.ntasks),
        kill_on_bad_exit=args.kill,
        wait_for_children=args.wait_for_children,
    )
    advice = ""
    with contextlib.suppress(SlurmResolverError):  # variables that nothing here needs
        advice = advise_on_nested_run(SlurmStep.read(), args.ntasks)
    for warning in (
        *([advice] if advice else ()),
        *gpus.warnings,
        *(() if cpus.warning is None else (cpus.warning,)),
    ):
        _print_line(warning)
    for rank, own in enumerate(cpus.cpus or () if cpus.verbose else ()):
        _print_line(f"task {rank} is bound to CPU {','.join(map(str, own))}")
    requeue = RequeueOptions(bool(args.requeue), args.max_restarts, _statuses(args.requeue_exit))
    progress = bool(args.verbose) or (sys.stderr.isatty() and not args.quiet)
    same_again = None
    if args.restarts:
        failures = LocalFailures()
        options = options._replace(listen=failures.listen)
        same_again = failures.same_again
    job = LocalJob(options, requeue, _print_line, progress, args.restarts, same_again)
    actions: Dict[int, Callable[[], None]] = {
        number: functools.partial(job.stop, number)
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT)
    }
    actions.update((number, functools.partial(job.forward, number)) for number in FORWARDED)
    actions[signal.SIGUSR2] = job.preempt
    actions.update((number, _do_nothing) for number in ignored)
    call_on_signals(actions)
    return job.run(os.environ)


def _do_nothing() -> None:
    pass


def _print_line(message: str) -> None:
    # in one write, as tasks may print lines at the same time
    sys.stderr.write(f"slurm-resolver run: {message}\n")
    sys.stderr.flush()


def _check_range(option: str, value: Optional[int], what: str, least: int) -> None:
    if value is not None and not least <= value <= _LARGEST_COUNT:
        raise LaunchError(
            f"{option} {value}: expected a number of {what} from {least} to {_LARGEST_COUNT}"
        )


def _statuses(text: str) -> List[int]:
    parts = text.split(",") if text else []
    if not all(part.isdigit() and 0 < int(part) < 256 for part in parts):
        raise LaunchError(
            f"--requeue-exit {text!r}: expected exit statuses from 1 to 255, as 75,85"
        )
    return [int(part) for part in parts]
