"""`slurm-resolver explain`: what the messages in the log of a failed run mean."""

from __future__ import annotations

import argparse
import json
import shutil
import sys
import textwrap
import time
from typing import TYPE_CHECKING, Any, Dict, List, NamedTuple, Optional

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


class _Log(NamedTuple):
    """What was found in a log, and which of its tasks failed first."""

    name: str
    findings: List[Finding]
    failure: Optional[Failure]

    def first_before_others(self) -> List[Finding]:
        """Returns the findings, and before them what has failed first, where that is known."""
        failure = self.failure
        if failure is None or failure.follows:
            return self.findings
        from slurm_resolver.diagnostics.log_messages import explain

        ids = {one.id for one in explain([failure.line])}
        known = [
            one for one in self.findings if one.line_number == failure.line_number or one.id in ids
        ]
        return [*(known or [_first(failure)]), *(one for one in self.findings if one not in known)]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds this subcommand's arguments."""
    parser.add_argument(
        "logs", nargs="*", metavar="LOGFILE", help="without any, or for -: the standard input"
    )
    parser.add_argument("--json", action="store_true", help="print JSON")


def main(args: argparse.Namespace) -> int:
    """Prints the findings; returns 0 for none, 1 for some, 2 if a file cannot be read."""
    from slurm_resolver.diagnostics.first_failure import first_of
    from slurm_resolver.diagnostics.log_messages import printable

    logs: List[_Log] = []
    unreadable = False
    for name in args.logs or ["-"]:
        try:
            logs.append(_read(name))
        except OSError as error:
            unreadable = True
            shown = printable(name)
            print(f"slurm-resolver explain: {shown}: {error.strerror or error}", file=sys.stderr)
    found: List[Dict[str, Any]] = []
    for place, number in enumerate(first_of([log.failure for log in logs])):
        log = logs[number]
        findings = log.first_before_others() if place == 0 else log.findings
        found += [{"file": log.name, **finding._asdict()} for finding in findings]
        for finding in () if args.json else findings:
            _print(printable(log.name), finding)
    if args.json:
        print(json.dumps(found))
    if not found and not unreadable:
        print("slurm-resolver explain: no known message found", file=sys.stderr)
    return 2 if unreadable else int(bool(found))


def _read(name: str) -> _Log:
    # imported here, as --help does not need it: its table takes longer than all the rest
    from slurm_resolver.diagnostics.first_failure import FailureReader
    from slurm_resolver.diagnostics.log_messages import explain_file

    reader = FailureReader()
    if name == "-":
        return _Log(name, explain_file(sys.stdin.buffer, reader.read), reader.first())
    with open(name, "rb") as stream:
        return _Log(name, explain_file(stream, reader.read), reader.first())


def _first(failure: Failure) -> Finding:
    from slurm_resolver.diagnostics.log_messages import Finding, printable

    when = ""
    if failure.time is not None:
        when = time.strftime(", after %Y-%m-%d %H:%M:%S", time.localtime(failure.time))
    return Finding(
        "first-failure",
        failure.line_number,
        printable(failure.line),
        f"This has failed first{when}. What other tasks say may be an effect of it.",
        "Mend this; the lines before it say more.",
        failure.task or None,
        1,
    )


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
