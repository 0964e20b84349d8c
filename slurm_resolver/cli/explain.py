"""`slurm-resolver explain`: what the messages in the log of a failed run mean."""

from __future__ import annotations

import argparse
import json
import shutil
import sys
import textwrap
import time
from contextlib import nullcontext
from typing import TYPE_CHECKING, List, Optional

if TYPE_CHECKING:
    from slurm_resolver.diagnostics.first_failure import Failure
    from slurm_resolver.diagnostics.log_messages import Finding

DESCRIPTION = """\
Reads logs and explains the messages of TensorFlow, gRPC, CUDA and Slurm that it knows: what each
means, which task it names, and what to do. Of tasks that failed it tells which was the first: of
several logs, as one a rank, its own comes first."""

EPILOG = """\
exit status: 0 when no known message was found, 1 when one was, 2 when a file cannot be read.

examples:
  slurm-resolver explain slurm-1234.out
  slurm-resolver explain rank-*.log
  srun --label python train.py 2>&1 | slurm-resolver explain"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds this subcommand's arguments."""
    parser.add_argument(
        "logs", nargs="*", metavar="LOGFILE", help="without any, or for -: the standard input"
    )
    parser.add_argument("--json", action="store_true", help="print JSON")


def main(args: argparse.Namespace) -> int:
    """Prints the findings; returns 0 for none, 1 for some, 2 if a file cannot be read."""
    # imported here, as --help does not need it: its table takes longer than all the rest
    from slurm_resolver.diagnostics.first_failure import FailureReader, first_of
    from slurm_resolver.diagnostics.log_messages import explain_file, printable

    names, findings, failures = [], [], []
    unreadable = False
    for name in args.logs or ["-"]:
        reader = FailureReader()
        try:
            with nullcontext(sys.stdin.buffer) if name == "-" else open(name, "rb") as stream:
                findings.append(explain_file(stream, reader.read))
        except OSError as error:
            unreadable = True
            shown = printable(name)
            print(f"slurm-resolver explain: {shown}: {error.strerror or error}", file=sys.stderr)
            continue
        names.append(name)
        failures.append(reader.first())
    order = first_of(failures)
    if order:
        findings[order[0]] = _first_before_others(failures[order[0]], findings[order[0]])
    found = [(names[number], finding) for number in order for finding in findings[number]]
    if args.json:
        print(json.dumps([{"file": name, **finding._asdict()} for name, finding in found]))
    else:
        for name, finding in found:
            _print(printable(name), finding)
    if not found and not unreadable:
        print("slurm-resolver explain: no known message found", file=sys.stderr)
    return 2 if unreadable else int(bool(found))


def _first_before_others(failure: Optional[Failure], findings: List[Finding]) -> List[Finding]:
    """Returns the findings of a log, those of what has failed first before the others."""
    from slurm_resolver.diagnostics.log_messages import Finding, explain, printable

    if failure is None or failure.follows:
        return findings
    ids = {one.id for one in explain([failure.line])}
    first = [one for one in findings if one.line_number == failure.line_number or one.id in ids]
    others = [one for one in findings if one not in first]
    if not first:
        when = ""
        if failure.time is not None:
            when = time.strftime(", after %Y-%m-%d %H:%M:%S", time.localtime(failure.time))
        cause = f"This has failed first{when}. What other tasks say may be an effect of it."
        remedy = "Mend this; the lines before it say more."
        number, line, task = failure.line_number, printable(failure.line), failure.task or None
        first = [Finding("first-failure", number, line, cause, remedy, task, 1)]
    return [*first, *others]


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
    print("\n".join(paragraphs))
