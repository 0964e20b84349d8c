"""The command `slurm-resolver`: one module for each subcommand; none imports TensorFlow.

Only the module of the given subcommand is imported: every task may run it, so it must start
quickly. Each module has `DESCRIPTION`, `EPILOG`, `OPTIONS` (`Parser.add` reads them) and
`main(args)`, which returns the exit status. `SLURMS_OPTIONS` says where options go that only Slurm
has.
"""

from __future__ import annotations

import importlib
import io
import os
import sys
from argparse import RawDescriptionHelpFormatter
from collections.abc import Collection, Sequence

from slurm_resolver.cli.shared_options import Parser
from slurm_resolver.errors import SlurmResolverError, find_rendezvous_error
from slurm_resolver.log import print_line
from slurm_resolver.version import __version__

COMMANDS = {
    "run": "start N tasks on this machine, as srun would in a step of one node",
    "exec": "run an unmodified program that reads TF_CONFIG or takes hosts as arguments",
    "show": "show the cluster of this Slurm step",
    "check": "check, before TensorFlow starts, whether it would hang",
    "sbatch": "print a batch file for a training on several nodes",
    "supervise": "run a step in a batch file, and restart it when a task or a node fails",
    "requeue": "requeue the job of a batch file if its training asks for it",
    "status": "show the epoch, step, phase and speed of each worker of a training",
    "explain": "explain the errors in the log of a run",
}

_EPILOG = """\
exit status: 0 for success, 1 if it found a problem, 2 if usage or environment is wrong; exec, run,
supervise and requeue return the program's own. COMMAND --help has details and examples."""


def build_parser(complete: Collection[str] = COMMANDS) -> Parser:
    """Returns the parser; only the subcommands in `complete` have their arguments."""
    parser = Parser(
        prog="slurm-resolver",
        description="TensorFlow on Slurm: clusters, launching and diagnosis.",
        epilog=_EPILOG,
        formatter_class=RawDescriptionHelpFormatter,
    )
    parser.add_argument(
        "-V",
        "--version",
        help="print the version",
        action="version",
        version=f"slurm-resolver {__version__}",
    )
    commands = parser.add_subparsers(dest="subcommand", metavar="COMMAND", required=True)
    for name, summary in COMMANDS.items():
        command = commands.add_parser(
            name,
            help=summary,
            formatter_class=RawDescriptionHelpFormatter,
            allow_abbrev=False,  # --ntasks is not --ntasks-per-node
        )
        if name in complete:
            module = importlib.import_module(f"slurm_resolver.cli.{name}")
            command.description = module.DESCRIPTION
            command.epilog = module.EPILOG
            command.set_defaults(
                function=module.main,
                refuse=command.error,
                slurms_options=getattr(module, "SLURMS_OPTIONS", ""),
            )
            for spelling, help in module.OPTIONS.items():
                command.add(spelling, help)
    return parser


def main(argv: Sequence[str] | None = None) -> int:
    """Runs the command line, or the words of a caller, and returns the exit status."""
    if argv is None:
        argv = sys.argv[1:]
        _print_any_text()
    if not argv:
        build_parser(()).print_help()
        return 2  # a script should notice that nothing was done
    # The parser's own options end the program, so the subcommand is the first other word.
    names = [word for word in argv if not word.startswith("-")][:1]
    args, unknown = build_parser(names).parse_known_args(argv)
    if unknown:
        args.refuse(f"unrecognized arguments: {' '.join(unknown)}{args.slurms_options}")
    try:
        return int(args.function(args))
    except SlurmResolverError as error:
        print_line(error, f"slurm-resolver {args.subcommand}")
        return 1 if find_rendezvous_error(error) else 2
    except OSError as error:  # of the output, whose rest Python would write at its end
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
        if not isinstance(error, BrokenPipeError):  # as in: slurm-resolver explain log | head
            print_line(f"cannot write the output: {error.strerror}", "slurm-resolver")
        return 2


def _print_any_text() -> None:
    """Lets a terminal that may only know ASCII show any text."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace", line_buffering=True)
