"""`slurm-resolver explain`: what the messages in the log of a failed run mean."""

from __future__ import annotations

import argparse
import json
import shutil
import sys
import textwrap
from typing import TYPE_CHECKING, Any, Dict, List

if TYPE_CHECKING:
    from slurm_resolver.diagnostics.log_messages import Finding

DESCRIPTION = """\
Reads logs and explains the messages of TensorFlow, gRPC, CUDA and Slurm that it knows: what each
means, which task it names, and what to do. The first one is often the cause of the others."""

EPILOG = """\
exit status: 0 when no known message was found, 1 when one was, 2 when a file cannot be read.

examples:
  slurm-resolver explain slurm-1234.out
  srun --label python train.py 2>&1 | slurm-resolver explain"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds this subcommand's arguments."""
    parser.add_argument(
        "logs", nargs="*", metavar="LOGFILE", help="without any, or for -: the standard input"
    )
    parser.add_argument("--json", action="store_true", help="print JSON")


def main(args: argparse.Namespace) -> int:
    """Prints the findings; returns 0 for none, 1 for some, 2 if a file cannot be read."""
    found: List[Dict[str, Any]] = []
    unreadable = False
    for name in args.logs or ["-"]:
        try:
            findings = _read(name)
        except OSError as error:
            unreadable = True
            print(f"slurm-resolver explain: {name}: {error.strerror or error}", file=sys.stderr)
            continue
        found += [{"file": name, **finding._asdict()} for finding in findings]
        if not args.json:
            for finding in findings:
                _print(name, finding)
    if args.json:
        print(json.dumps(found))
    if not found and not unreadable:
        print("slurm-resolver explain: no known message found", file=sys.stderr)
    return 2 if unreadable else int(bool(found))


def _read(name: str) -> List[Finding]:
    # imported here, as --help does not need it: its table takes longer than all the rest
    from slurm_resolver.diagnostics.log_messages import explain_file

    if name == "-":
        return explain_file(sys.stdin.buffer)
    with open(name, "rb") as stream:
        return explain_file(stream)


def _print(name: str, finding: Finding) -> None:
    width = max(40, shutil.get_terminal_size().columns)
    address = f" at {finding.address}" if finding.address else ""
    paragraphs = [f"{name}:{finding.line_number}: {finding.id} (x{finding.count}){address}"]
    for text in (finding.line, f"Cause: {finding.cause}", f"Remedy: {finding.remedy}"):
        paragraphs += textwrap.wrap(
            text,
            width,
            initial_indent="    ",
            subsequent_indent="      ",
            break_on_hyphens=False,  # as in a command's options
        )
    encoding = sys.stdout.encoding or "utf-8"
    print("\n".join(paragraphs).encode(encoding, "backslashreplace").decode(encoding))
