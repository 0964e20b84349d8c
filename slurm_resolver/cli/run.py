"""`slurm-resolver run`: a step of several tasks on this machine, where there is no Slurm."""

from __future__ import annotations

import argparse
import functools
import os
import shutil
import signal
import sys
from typing import Callable, Dict, List, Optional

from slurm_resolver.cli.srun_options import add_options_only_for_slurm, no_input, one_node
from slurm_resolver.errors import LaunchError
from slurm_resolver.preemption.requeue import REQUEUE_STATUS

DESCRIPTION = """\
Starts COMMAND as N tasks on this machine, each with the variables that srun sets in a step of one
node (localhost). The options are srun's. When a task fails, or on Ctrl-C, all tasks are asked to
end, and killed 5 seconds later (Slurm: KillWait, 30 by default) or on a second Ctrl-C."""

EPILOG = """\
differences from srun:
  each line on the screen begins with its task's rank (srun: with -l), and lines never mix
  a task that fails ends the others (srun: with -K)
  -t is exact to the second (srun rounds it up to minutes)
  --requeue starts the tasks again, at once (sbatch: the batch script)
  only variables hide GPUs, so that a program can still reach those of other tasks
  tasks read nothing from standard input (as with srun --input none)

not simulated, and an error: several nodes; memory and other resources that Slurm limits; the
queue; what daemons do (prolog, MPI, propagation); binding to listed GPUs or CPUs (map_gpu,
mask_gpu, map_cpu, mask_cpu); --multi-prog, --export, --pty, --wait.

requeue: with --requeue the tasks start again, with SLURM_RESTART_COUNT=1 and so on, when one of
them ends with a status of --requeue-exit, or after a preemption, which is SIGUSR2 to this command,
or --preempt-after. A preempted task gets SIGTERM, and SIGKILL 5 seconds later. After its time limit
nothing is started again, here as on Slurm. A restart empties the output files, as a requeue on
Slurm does, unless --open-mode=append.

exit status: the highest of the tasks'; a task that a signal ended, and all tasks ended by a signal
to this command, count as 128 and the signal's number (Ctrl-C: 130, time limit: 143); 2 when usage
or environment are wrong.

examples:
  slurm-resolver run -n 2 -- python train.py
  slurm-resolver run -n 4 --cpus-per-task 2 --gpus-per-task 1 -- python train.py --epochs 3
  slurm-resolver run -n 2 -o 'rank-%t.log' -t 1:00 --signal USR1@30 -- python train.py
  slurm-resolver run -n 2 --requeue --preempt-after 20 -- python train.py"""

_LARGEST_COUNT = 4096
_MAX_RESTARTS = 5  # Slurm's own default (MaxBatchRequeue)


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
        metavar="HOW",
        help="none, rank, cores or threads; verbose,HOW also prints each task's CPUs",
    )
    add(
        "-m",
        "--distribution",
        metavar="HOW",
        help="sets SLURM_DISTRIBUTION; on one node each gives the same layout",
    )
    add("-J", "--job-name", metavar="NAME", help="SLURM_JOB_NAME (the command's name)")
    add("-D", "--chdir", metavar="DIR", help="the tasks' working directory")
    _add_gpu_options(parser)
    _add_output_options(parser)
    _add_end_options(parser)
    add("-i", "--input", type=no_input, metavar="none", help="only none, the default here")
    # Accepted, and without effect, as nothing is buffered here.
    add("-u", "--unbuffered", action="store_true", help=argparse.SUPPRESS)
    add("command_line", nargs=argparse.REMAINDER, metavar="-- COMMAND [ARGUMENT …]")
    add_options_only_for_slurm(parser)


def _add_gpu_options(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument_group(
        "GPUs", "the first of those in CUDA_VISIBLE_DEVICES, else 0, 1 and so on"
    ).add_argument
    add("-G", "--gpus", type=_gpus, metavar="N", help="GPUs of all tasks together; 0 hides all")
    add("--gpus-per-node", type=_gpus, metavar="N", help="the same, on one node")
    add("--gpus-per-task", type=_gpus, metavar="N", help="GPUs of each task, which sees no other")
    add(
        "--gpu-bind",
        metavar="HOW",
        help="none, closest (all), single:N (N tasks share one) or per_task:N",
    )


def _add_output_options(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument_group(
        "output",
        "PATTERN is a file name with %t (rank), %n (node's number), %N (node's name), %j (job\n"
        "id), %J (job.step), %s (step id), %x (job name), %u (user) or %%; %4t pads a number with\n"
        "zeros. It may also be all, none, or the rank of the only task that is shown.",
    ).add_argument
    add(
        "-l",
        "--label",
        action=argparse.BooleanOptionalAction,
        help="put the rank before each line (default: on the screen, not in files)",
    )
    add("-o", "--output", metavar="PATTERN", help="where the output goes (all: the screen)")
    add("-e", "--error", metavar="PATTERN", help="where the errors go (where the output goes)")
    add(
        "--open-mode",
        choices=("append", "truncate", "a", "t"),
        default="truncate",
        help="keep what the files hold, or empty them at every start (truncate)",
    )
    add("-v", "--verbose", action="count", default=0, help="say when the tasks have started")
    add("-Q", "--quiet", action="store_true", help="do not say so, even on a terminal")


def _add_end_options(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument_group("end and restart").add_argument
    add(
        "-t",
        "--time",
        metavar="TIME",
        help="time limit: minutes, minutes:seconds, hours:minutes:seconds, days-hours[:minutes"
        "[:seconds]]; then SIGTERM, and SIGKILL after 5 seconds",
    )
    add(
        "--signal",
        metavar="SIG[@S]",
        help="send the tasks a signal S seconds (60) before the time limit",
    )
    # Each spelling by itself: with an optional value argparse would take the next word for it.
    add(
        *("-K", "-K1", "--kill-on-bad-exit", "--kill-on-bad-exit=1"),
        dest="kill",
        action="store_true",
        default=True,
        help="end all tasks when one fails (default)",
    )
    add(
        *("-K0", "--kill-on-bad-exit=0", "--no-kill-on-bad-exit"),
        dest="kill",
        action="store_false",
        help="let the other tasks go on when one fails",
    )
    add(
        "--requeue",
        action=argparse.BooleanOptionalAction,
        help="start the tasks again where Slurm would requeue",
    )
    add(
        "--max-restarts",
        type=int,
        default=_MAX_RESTARTS,
        metavar="N",
        help=f"how often at most ({_MAX_RESTARTS})",
    )
    add(
        "--requeue-exit",
        default=str(REQUEUE_STATUS),
        metavar="STATUS,…",
        help="exit statuses by which a task asks for a restart, as RequeueExit in slurm.conf "
        f"({REQUEUE_STATUS})",
    )
    add(
        "--preempt-after",
        type=float,
        metavar="S",
        help="simulate a preemption S seconds after the first start",
    )


def _gpus(text: str) -> int:
    if not text.isdigit() or int(text) > _LARGEST_COUNT:
        raise argparse.ArgumentTypeError(
            f"{text!r}: expected a number; only Slurm knows types (a100:2)"
        )
    return int(text)


def main(args: argparse.Namespace) -> int:
    """Runs the tasks to their end, and returns the worst exit status."""
    command = args.command_line[1:] if args.command_line[:1] == ["--"] else args.command_line
    if not command:
        raise LaunchError("no command: slurm-resolver run -n 2 -- python train.py")
    _check_range("-n", args.ntasks, "tasks", 1)
    _check_range("--cpus", args.cpus, "CPUs", 1)
    _check_range("--max-restarts", args.max_restarts, "restarts", 0)
    if args.preempt_after is not None and not args.preempt_after >= 0:
        raise LaunchError(f"--preempt-after {args.preempt_after}: expected seconds, 0 or more")
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
    from slurm_resolver.local.signal_thread import call_on_signals
    from slurm_resolver.local.step import StepOptions
    from slurm_resolver.slurm.time_limit import parse_time_and_signal

    limit, limit_signal = parse_time_and_signal(args.time, args.signal)
    if args.signal is not None and limit is None:
        _print_line("--signal without a time limit (--time) sends nothing, as on Slurm")
    request = GpuRequest(args.gpus, args.gpus_per_node, args.gpus_per_task, args.gpu_bind)
    gpus = srun_gpu_variables(request, args.ntasks, os.environ)
    cpus = bind_cpus(args.cpu_bind, args.ntasks, args.cpus, sorted(os.sched_getaffinity(0)))
    options = StepOptions(
        command,
        args.ntasks,
        args.cpus,
        job_name=args.job_name,
        directory=args.chdir,
        cpus=cpus.cpus,
        variables={**distribution_variables(args.distribution), **cpus.variables},
        task_variables=gpus.variables,
        removed_variables=gpus.removed,
        output=OutputOptions(args.output, args.error, args.label, args.open_mode.startswith("a")),
        time_limit=limit,
        limit_signal=limit_signal,
        preempt_after=args.preempt_after,
        kill_on_bad_exit=args.kill,
    )
    for warning in gpus.warnings:
        _print_line(warning)
    for rank, own in enumerate(cpus.cpus or () if cpus.verbose else ()):
        _print_line(f"task {rank} is bound to CPU {','.join(map(str, own))}")
    requeue = RequeueOptions(bool(args.requeue), args.max_restarts, _statuses(args.requeue_exit))
    progress = bool(args.verbose) or (sys.stderr.isatty() and not args.quiet)
    job = LocalJob(options, requeue, _print_line, progress)
    actions: Dict[int, Callable[[], None]] = {
        number: functools.partial(job.stop, number)
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
    }
    actions[signal.SIGUSR2] = job.preempt
    call_on_signals(actions)
    return job.run(os.environ)


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
