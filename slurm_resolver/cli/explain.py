"""`slurm-resolver explain`: what the messages in the log of a failed run mean."""

from __future__ import annotations

import json
import os
import shutil
import sys
import textwrap
from argparse import Namespace
from contextlib import nullcontext

from slurm_resolver.cli.options import Options
from slurm_resolver.diagnostics.first_failure import FailureReader
from slurm_resolver.diagnostics.log_messages import Finding, explain, explain_file, printable
from slurm_resolver.wording import shorten

DESCRIPTION = """\
Reads logs and explains the messages of TensorFlow, gRPC, CUDA and Slurm that it knows: the cause,
the task that the message names, and the remedy. The first line names the task that failed first."""

EPILOG = """\
exit status: 0 if nothing was found, 1 if something was, 2 if a file cannot be read.

examples:
  slurm-resolver explain slurm-1234.out
  slurm-resolver explain rank-*.log
  srun --label python train.py 2>&1 | slurm-resolver explain"""

_MOST_ADDRESSES = 5  # that are printed for one message


def add_arguments(add: Options) -> None:
    """Adds this subcommand's arguments."""
    add.parser.add_argument(
        "logs", nargs="*", metavar="LOGFILE", help="a log, or - for standard input (default)"
    )
    add("--json", "print JSON")


def main(args: Namespace) -> int:
    """Prints the findings; returns 0 for none, 1 for some, 2 if a file cannot be read."""
    logs = []
    all_read = True
    for path in args.logs or ["-"]:
        reader = FailureReader()
        name = printable(path)
        try:
            with nullcontext(sys.stdin.buffer) if path == "-" else open(path, "rb") as stream:
                written = os.fstat(stream.fileno()).st_mtime
                findings = explain_file(stream, reader.read)
        except OSError as error:
            print(f"slurm-resolver explain: {name}: {error.strerror or error}", file=sys.stderr)
            all_read = False
            continue
        failure = reader.first()
        logs.append((failure is None or failure.follows, written, name, failure, findings))
    # The other tasks end after the one that failed first, and so do their logs.
    logs.sort(key=lambda log: log[:2])
    first = logs[0][3] if logs else None
    if first and not first.follows:
        findings = logs[0][4]
        own = {one.id for one in explain([first.line])}
        findings.sort(key=lambda one: one.line_number != first.line_number and one.id not in own)
        findings.insert(
            0,
            Finding(
                "first-failure",
                first.line_number,
                printable(first.line),
                "This task failed first. Errors of other tasks may be effects of its failure.",
                "Correct this error. The lines before it in the log tell more.",
                first.task or None,
                1,
            ),
        )
    found = [(name, finding) for _, _, name, _, findings in logs for finding in findings]
    if args.json:
        print(json.dumps([{"file": name, **finding._asdict()} for name, finding in found]))
    else:
        # The first failure in one line, then each message with its cause and remedy once.
        wrapper = textwrap.TextWrapper(
            max(40, shutil.get_terminal_size().columns), "    ", "      ", break_on_hyphens=False
        )
        printed = set()  # the causes and remedies
        for id in dict.fromkeys(finding.id for _, finding in found):
            same = [(name, finding) for name, finding in found if finding.id == id]
            name, one = same[0]
            if id == "first-failure":
                who = f"{one.address} failed" if one.address else "failed"
                print(f"{who} first: {one.line} ({name}:{one.line_number})")
                continue

            addresses = list(dict.fromkeys(each.address for _, each in same if each.address))
            at = f" at {shorten(addresses, _MOST_ADDRESSES)}" if addresses else ""
            print(f"{name}:{one.line_number}: {id} (x{sum(each.count for _, each in same)}){at}")
            print(wrapper.fill(one.line))
            for text in (f"Cause: {one.cause}", f"Remedy: {one.remedy}"):
                if text not in printed:
                    printed.add(text)
                    print(wrapper.fill(text))
    if not all_read:
        return 2
    if not found:
        print("slurm-resolver explain: no known message found", file=sys.stderr)
    return int(bool(found))
