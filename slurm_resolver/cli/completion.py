"""`slurm-resolver completion`: prints a completion script for a shell."""

from __future__ import annotations

import argparse

from slurm_resolver.errors import LaunchError

DESCRIPTION = """\
Prints a script for SHELL that completes subcommands, options and their values."""

EPILOG = """\
exit status: 0; 2 for an unknown shell, or without shtab (pip install 'shtab>=1.10').

examples:
  eval "$(slurm-resolver completion bash)"       # in ~/.bashrc
  slurm-resolver completion zsh > ~/.zfunc/_slurm-resolver
  slurm-resolver completion fish > ~/.config/fish/completions/slurm-resolver.fish"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds this subcommand's arguments."""
    parser.add_argument("shell", choices=("bash", "zsh", "fish", "tcsh"), help="the shell")


def main(args: argparse.Namespace) -> int:
    """Prints the script."""
    try:
        import shtab
    except ImportError:
        raise LaunchError(
            "shtab writes the script, and is not installed: pip install 'shtab>=1.10'"
        ) from None
    from slurm_resolver.cli import COMMANDS, build_parser

    parser = build_parser(COMMANDS)
    assert parser._subparsers is not None
    for command in parser._subparsers._group_actions[0].choices.values():  # type: ignore[union-attr]
        for action in command._actions:
            if action.dest in ("logs", "command_line", "output"):
                action.complete = shtab.FILE
    print(shtab.complete(parser, args.shell))
    return 0
