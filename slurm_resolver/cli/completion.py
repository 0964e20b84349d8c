"""`slurm-resolver completion`: what a shell needs to complete this command's words."""

from __future__ import annotations

import argparse

from slurm_resolver.errors import LaunchError

DESCRIPTION = """\
Prints a script for SHELL that completes subcommands, options and their values."""

EPILOG = """\
exit status: 0, and 2 for an unknown shell or without shtab, which writes the script
(pip install 'shtab>=1.10').

examples:
  eval "$(slurm-resolver completion bash)"       # in ~/.bashrc
  slurm-resolver completion zsh > ~/.zfunc/_slurm-resolver
  slurm-resolver completion fish > ~/.config/fish/completions/slurm-resolver.fish
  slurm-resolver completion tcsh > ~/.slurm-resolver.tcsh    # and source it in ~/.tcshrc"""

# What a word is, as shtab's scripts complete it; other arguments complete to their choices.
_FILES = {"bash": "_shtab_compgen_files", "zsh": "_files", "tcsh": "f"}
_FOLDERS = {"bash": "_shtab_compgen_dirs", "zsh": "_files -/", "tcsh": "d"}
_PATHS = {"logs": _FILES, "command_line": _FILES, "output": _FILES, "chdir": _FOLDERS}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds this subcommand's arguments."""
    parser.add_argument("shell", choices=("bash", "zsh", "fish", "tcsh"), help="the shell")


def main(args: argparse.Namespace) -> int:
    """Prints the script."""
    try:
        import shtab
    except ImportError:
        raise LaunchError(
            "shtab, which writes the script, is not installed: pip install 'shtab>=1.10'"
        ) from None
    if args.shell not in shtab.SUPPORTED_SHELLS:
        raise LaunchError(
            f"shtab {shtab.__version__}, which writes the script, knows no {args.shell}: "
            "pip install 'shtab>=1.10'"
        )

    from slurm_resolver.cli import build_parser

    parser = build_parser()
    for command in _subparsers(parser):
        for action in command._actions:
            if action.dest in _PATHS:
                action.complete = _PATHS[action.dest]  # type: ignore[attr-defined]
    print(shtab.complete(parser, args.shell))
    return 0


def _subparsers(parser: argparse.ArgumentParser) -> list[argparse.ArgumentParser]:
    # argparse has no public way to walk its actions; shtab itself walks them like this
    return [
        command
        for action in parser._actions
        if isinstance(action, argparse._SubParsersAction)
        for command in action.choices.values()
    ]
