"""The options of `slurm-resolver run` that come in groups: GPUs, output, end and restart."""

from __future__ import annotations

import argparse

from slurm_resolver.preemption.requeue import REQUEUE_STATUS

_MAX_RESTARTS = 5  # Slurm's own default (MaxBatchRequeue)


def add_gpu_options(parser: argparse.ArgumentParser) -> None:
    """Adds those about GPUs."""
    add = parser.add_argument_group(
        "GPUs", "the first of those in CUDA_VISIBLE_DEVICES, else 0, 1 and so on"
    ).add_argument
    add("-G", "--gpus", metavar="N", help="GPUs of all tasks together; 0 hides all")
    add("--gpus-per-node", metavar="N", help="the same, on one node")
    add("--gpus-per-task", metavar="N", help="GPUs of each task, which sees no other")
    add("--tres-per-task", metavar="LIST", help="the same, and CPUs: cpu=2,gres/gpu=1")
    add(
        "--gpu-bind",
        metavar="HOW",
        help="none or closest (all), single:N (N tasks share one) or per_task:N",
    )
    add(
        "--tres-bind",
        dest="gpu_bind",
        type=_tres_bind,
        metavar="HOW",
        help="gres/gpu:HOW: the same",
    )


def add_output_options(parser: argparse.ArgumentParser) -> None:
    """Adds those about output files."""
    add = parser.add_argument_group(
        "output",
        "PATTERN is a file name with %t (rank), %n (node's number), %N (node's name), %j (job\n"
        "id), %J (job.step), %s (step id), %S (the job's SLUID), %x (job name), %u (user) or %%;\n"
        "%4t pads a number with zeros. It may also be all, none, or the rank of the only task\n"
        "that is shown. Errors of a task whose output has a file of its own go there too, unless\n"
        "theirs has %t, %n or %N as well.",
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


def add_end_options(parser: argparse.ArgumentParser) -> None:
    """Adds those about how tasks end and start again."""
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
        "--wait-for-children",
        action="store_true",
        help="a task ends when all that it has started has ended, or when it fails",
    )
    add(
        "--ignore-signals",
        metavar="SIG,…",
        help="do nothing when this command gets these signals: HUP, INT, QUIT, TERM, USR1, USR2",
    )
    # Only a variable: nothing limits the memory here, and a task that is killed ends the others.
    for value, options in {"1": ("--oom-kill-step", "--oom-kill-step=1"), "0": ()}.items():
        add(
            *(options or (f"--oom-kill-step={value}",)),
            dest="oom_kill_step",
            action="store_const",
            const=value,
            default="0",
            help=argparse.SUPPRESS,
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
        "--restarts",
        type=int,
        default=0,
        metavar="N",
        help="start a new step in the same job when a task has failed, N times at most (0)",
    )
    add(
        "--fail-after",
        metavar="S[:RANK]",
        help="kill the task RANK (the last one) S seconds after the first start",
    )
    add(
        "--preempt-after",
        metavar="S[:start]",
        help="simulate a preemption S seconds after the training's first step, or after the start "
        "of the tasks",
    )


def _tres_bind(text: str) -> str:
    if not text.startswith("gres/gpu:"):
        raise argparse.ArgumentTypeError(f"{text!r}: expected gres/gpu: and what --gpu-bind takes")
    return text[len("gres/gpu:") :]
