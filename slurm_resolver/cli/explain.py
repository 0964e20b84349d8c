"""`slurm-resolver explain`: what the messages in the log of a failed run mean.

The logs of one start of one job belong together: the task that failed first is looked for in all.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import textwrap
from argparse import Namespace
from collections import defaultdict
from collections.abc import Mapping
from dataclasses import asdict
from operator import itemgetter

from slurm_resolver.cli.options import OptionAdder
from slurm_resolver.diagnostics.first_failure import FailureReader
from slurm_resolver.diagnostics.known_messages import MESSAGES
from slurm_resolver.diagnostics.log_starts import read_starts
from slurm_resolver.diagnostics.message_search import Finding, printable, search
from slurm_resolver.log import print_line
from slurm_resolver.wording import counted, shorten

DESCRIPTION = """\
Reads logs and explains the messages of TensorFlow, gRPC, CUDA, NCCL and Slurm that it knows: the
cause, the task that the message names, and the remedy. The first line names what failed first.
Logs of several jobs, and of several starts of a job, are told apart; the last start comes first."""

EPILOG = """\
exit status: 0 if it found nothing, 1 if it found a failure or a known message, 2 if a file cannot
be read.

examples:
  slurm-resolver explain slurm-1234.out
  slurm-resolver explain rank-*.log
  srun --label python train.py 2>&1 | slurm-resolver explain"""

_CAUSES = ("cause", "request")  # the kinds of messages that say why
_MOST_ADDRESSES = 5  # that are printed for one message
# The id of a job in the name of its log, such as slurm-42.out, job42/rank-0.log and train-1234.out.
_JOB = re.compile(
    r".*(?:slurm|job)[-_.]?(\d+(?:_\d+)?)"
    r"|.*-(\d{3,}(?:_\d+)?)\.(?:out|err)$",
    re.IGNORECASE,
)


def add_arguments(add: OptionAdder) -> None:
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
        name = printable(path)
        try:
            with open(0 if path == "-" else path, "rb") as stream:
                written = os.fstat(stream.fileno()).st_mtime
                starts = read_starts(stream, name)
        except OSError as error:
            print_line(f"{name}: {error.strerror or error}", "slurm-resolver explain")
            all_read = False
            continue
        named = _JOB.match(path)
        logs.append((named[1] or named[2] if named else starts[-1].slurm_job, written, starts))
    jobs = {slurm_job for slurm_job, _, _ in logs if slurm_job}
    only_job = "".join(jobs) if len(jobs) == 1 else ""
    parts = defaultdict(list)  # of the logs, by how many starts follow in the log, and the job
    for slurm_job, written, starts in logs:
        for later, reader in enumerate(reversed(starts)):
            if not later or not reader.continues:
                first = reader.first()
                # The other tasks end after the one that failed first, and so do their logs.
                order = first is None or first.follows, written
                parts[later, slurm_job or only_job].append((order, reader))
    found = {}
    for start in sorted(parts):
        findings = _explain([reader for _, reader in sorted(parts[start], key=itemgetter(0))])
        if findings:
            found[start] = findings
    if args.json:
        print(json.dumps([asdict(one) for findings in found.values() for one in findings]))
    else:
        _print(found)
    if not all_read:
        return 2
    if not found:
        print_line("no known message found: look for the first error", "slurm-resolver explain")
    return int(bool(found))


def _explain(readers: list[FailureReader]) -> list[Finding]:
    """Returns what explains one start of a job; the first of `readers` has the first failure."""
    first = readers[0].first()
    findings = readers[0].findings()
    if first and not first.follows:
        _, own, _ = search(first.line)
        findings.sort(
            key=lambda one: (
                MESSAGES[one.id].kind not in _CAUSES,
                one.line_number != first.line_number and MESSAGES[one.id] is not own,
            )
        )
        line = printable(first.line)
        # How a task has ended is not why.
        if first.is_end and findings and MESSAGES[findings[0].id].kind in _CAUSES:
            line += f", after: {findings[0].line}"
        findings.insert(
            0,
            Finding(
                file=readers[0].file,
                id="first-failure",
                line_number=first.line_number,
                line=line,
                cause="This task failed first. "
                "Errors of other tasks may be effects of its failure.",
                remedy="Correct this error. The lines before it in the log tell more.",
                address=first.task or None,
                count=1,
            ),
        )
    for reader in readers[1:]:
        findings += reader.findings()
    return findings


def _print(found: Mapping[tuple[int, str], list[Finding]]) -> None:
    """Prints the first failure in one line, then each message with its cause and remedy once."""
    wrapper = textwrap.TextWrapper(
        width=max(40, shutil.get_terminal_size().columns),
        initial_indent="    ",
        subsequent_indent="      ",
        break_on_hyphens=False,
    )
    printed = set()  # the causes and remedies
    for (later, slurm_job), findings in found.items():
        title = f"job {slurm_job}" if slurm_job else "a job"
        if later:
            title += f", {counted(later, 'start')} before the last"
        if later or len(found) > 1:
            print(f"{title}:")
        by_id = defaultdict(list)
        for finding in findings:
            by_id[finding.id].append(finding)
        for id, same in by_id.items():
            one = same[0]
            place = f"{one.file}:{one.line_number}"
            if id == "first-failure":
                who = f"{one.address} failed" if one.address else "failed"
                print(f"{who} first: {one.line} ({place})")
                continue
            addresses = list(dict.fromkeys(each.address for each in same if each.address))
            at = f" at {shorten(addresses, _MOST_ADDRESSES)}" if addresses else ""
            print(f"{place}: {id} (x{sum(each.count for each in same)}){at}")
            print(wrapper.fill(one.line))
            for text in (f"Cause: {one.cause}", f"Remedy: {one.remedy}"):
                if text not in printed:
                    printed.add(text)
                    print(wrapper.fill(text))
