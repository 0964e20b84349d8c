"""`slurm-resolver explain`: what the messages in the log of a failed run mean.

The logs of one start of one job belong together: the task that failed first is looked for in all.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import sys
import textwrap
from argparse import Namespace
from contextlib import nullcontext

from slurm_resolver.cli.options import Options
from slurm_resolver.diagnostics.first_failure import FailureReader
from slurm_resolver.diagnostics.known_messages import MESSAGES
from slurm_resolver.diagnostics.log_messages import Finding, printable, read_starts, search
from slurm_resolver.wording import counted, shorten

DESCRIPTION = """\
Reads logs and explains the messages of TensorFlow, gRPC, CUDA and Slurm that it knows: the cause,
the task that the message names, and the remedy. The first line names the task that failed first.
Logs of several jobs, and of several starts of a job, are told apart; the last start comes first."""

EPILOG = """\
exit status: 0 if it found no known message, 1 if it found one, 2 if a file cannot be read.

examples:
  slurm-resolver explain slurm-1234.out
  slurm-resolver explain rank-*.log
  srun --label python train.py 2>&1 | slurm-resolver explain"""

_Start = tuple[int, str]  # how many starts follow it in a log, and the job
_Found = list[tuple[str, Finding]]  # with the names of logs


class _Log:
    """What one start of a job has left in a log, which was written at a time."""

    def __init__(self, written: float, name: str, reader: FailureReader) -> None:
        self.written = written
        self.name = name
        self.first = reader.first()
        self.findings = reader.findings()


_MOST_ADDRESSES = 5  # that are printed for one message
# The id of a job in the name of its log, such as slurm-42.out, job42/rank-0.log and train-1234.out.
_JOB = re.compile(
    r".*(?:slurm|job)[-_.]?(\d+(?:_\d+)?)|.*-(\d{3,}(?:_\d+)?)\.(?:out|err)$", re.IGNORECASE
)


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
        name = printable(path)
        try:
            with nullcontext(sys.stdin.buffer) if path == "-" else open(path, "rb") as stream:
                written = os.fstat(stream.fileno()).st_mtime
                readers = read_starts(stream, FailureReader)
        except OSError as error:
            print(f"slurm-resolver explain: {name}: {error.strerror or error}", file=sys.stderr)
            all_read = False
            continue
        named = _JOB.match(path)
        job = named[1] or named[2] if named else readers[-1].job
        for later, reader in enumerate(reversed(readers)):
            if not later or not reader.continues:
                logs.append((later, job, _Log(written, name, reader)))
    jobs = {job for _, job, _ in logs if job}
    starts: dict[_Start, list[_Log]] = {}
    for later, job, log in logs:
        job = job or ("".join(jobs) if len(jobs) == 1 else "")
        starts.setdefault((later, job), []).append(log)
    found = {start: _explain(starts[start]) for start in sorted(starts)}
    found = {start: findings for start, findings in found.items() if findings}
    if args.json:
        print(
            json.dumps(
                [
                    {"file": name, **finding._asdict()}
                    for findings in found.values()
                    for name, finding in findings
                ]
            )
        )
    else:
        _print(found)
    if not all_read:
        return 2
    if not found:
        print("slurm-resolver explain: no known message found", file=sys.stderr)
    return int(bool(found))


def _explain(logs: list[_Log]) -> _Found:
    """Returns what explains one start of a job, the first failure first, with the names of logs."""
    # The other tasks end after the one that failed first, and so do their logs.
    logs.sort(key=lambda log: (log.first is None or log.first.follows, log.written))
    first = logs[0].first
    findings = logs[0].findings
    if first and not first.follows:
        own = search(first.line)[1]
        findings.sort(
            key=lambda one: (
                MESSAGES[one.id].kind != "cause",
                one.line_number != first.line_number and one.id != own,
            )
        )
        line = printable(first.line)
        # How a task has ended is not why.
        if first.is_end and findings and MESSAGES[findings[0].id].kind == "cause":
            line += f", after: {findings[0].line}"
        findings.insert(
            0,
            Finding(
                "first-failure",
                first.line_number,
                line,
                "This task failed first. Errors of other tasks may be effects of its failure.",
                "Correct this error. The lines before it in the log tell more.",
                first.task or None,
                1,
            ),
        )
    return [(log.name, finding) for log in logs for finding in log.findings]


def _print(found: dict[_Start, _Found]) -> None:
    """Prints the first failure in one line, then each message with its cause and remedy once."""
    wrapper = textwrap.TextWrapper(
        max(40, shutil.get_terminal_size().columns), "    ", "      ", break_on_hyphens=False
    )
    printed = set()  # the causes and remedies
    for (later, job), findings in found.items():
        title = f"job {job}" if job else "a job"
        if later:
            title += f", {counted(later, 'start')} before the last"
        if later or len(found) > 1:
            print(f"{title}:")
        for id in dict.fromkeys(finding.id for _, finding in findings):
            same = [(name, finding) for name, finding in findings if finding.id == id]
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
