"""`slurm-resolver explain`: what the messages in the log of a failed run mean.

The logs of one start of one job belong together: the task that failed first is looked for in all.
"""

from __future__ import annotations

import os
import re
import shutil
import textwrap
from argparse import Namespace
from collections import defaultdict
from collections.abc import Sequence
from operator import itemgetter

from slurm_resolver.cli.options import OptionAdder
from slurm_resolver.diagnostics.first_failure import FailureReader
from slurm_resolver.diagnostics.known_messages import CAUSES
from slurm_resolver.diagnostics.log_starts import read_starts
from slurm_resolver.diagnostics.message_search import printable, search
from slurm_resolver.log import print_line
from slurm_resolver.wording import counted, shorten

DESCRIPTION = """\
Reads logs and explains the messages of TensorFlow, gRPC, CUDA, NCCL and Slurm that it knows: the
cause, the task that the message names, and the remedy. The first line names what failed first.
Logs of several jobs, and of several starts of a job, are told apart; the last start comes first."""

EPILOG = """\
exit status: 0 if it found no failure, 1 if it found one, 2 if a file cannot be read. Messages that
do no harm, or after which the training went on, are explained, but are no failure.

examples:
  slurm-resolver explain slurm-1234.out
  slurm-resolver explain rank-*.log
  srun --label python train.py 2>&1 | slurm-resolver explain"""

_NO_FAILURE = (
    "no failure found. If the job failed, ask Slurm: sacct -j JOBID -o JobID,State,ExitCode,Reason"
)
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


def main(args: Namespace) -> int:
    """Prints the findings; returns 0 for no failure, 1 for one, 2 if a file cannot be read."""
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
        logs.append((written, named[1] or named[2] if named else starts[-1].slurm_job, starts))
    jobs = {slurm_job for _, slurm_job, _ in logs if slurm_job}
    only_job = "".join(jobs) if len(jobs) == 1 else ""
    readers = defaultdict(list)  # by how many starts follow in the log, and the job
    # The other tasks end after the one that failed first, and so do their logs.
    for _, slurm_job, starts in sorted(logs, key=itemgetter(0)):
        for later, reader in enumerate(reversed(starts)):
            if not later or not reader.continues:
                readers[later, slurm_job or only_job].append(reader)
    told: set[str] = set()
    has_failed = any(reader.has_failed for start in readers.values() for reader in start)
    if all_read and not has_failed:
        print_line(_NO_FAILURE, "slurm-resolver explain")
    texts = {start: _explain(readers[start], told) for start in sorted(readers)}
    texts = {start: text for start, text in texts.items() if text}
    for (later, slurm_job), text in texts.items():
        title = f"job {slurm_job}" if slurm_job else "a job"
        if later:
            title += f", {counted(later, 'start')} before the last"
        if later or len(texts) > 1:
            print(f"{title}:")
        print(text)
    if not all_read:
        return 2
    return int(has_failed)


def _explain(readers: Sequence[FailureReader], told: set[str]) -> str:
    """Returns what explains one start of a job, with each cause and remedy once; '' for nothing.

    Args:
        readers: of the start's logs, the first one that was written first.
        told: the causes and remedies that need not be said again; it gets those of this start.
    """
    readers = sorted(readers, key=_follows)
    first = readers[0].first()
    findings = readers[0].findings()
    lines = []
    if first and not first.follows:
        own, _ = search(first.line)
        findings.sort(
            key=lambda one: (
                one.known.kind not in CAUSES,
                one.line_number != first.line_number and one.known is not own,
            )
        )
        line = printable(first.line)
        if first.is_end and findings and findings[0].known.kind in CAUSES:
            line += f", after: {findings[0].line}"
        place = f"{readers[0].file}:{first.line_number}"
        lines.append(f"{first.task} failed first: {line} ({place})".lstrip())
    for reader in readers[1:]:
        findings += reader.findings()
    if not any(reader.has_failed for reader in readers):  # a connection may have failed for a time
        findings = [one for one in findings if one.known.kind != "effect"]
    by_id = defaultdict(list)
    for finding in findings:
        by_id[finding.known.id].append(finding)
    for id, same in by_id.items():
        one = same[0]
        addresses = list(dict.fromkeys(each.address for each in same if each.address))
        at = f" at {shorten(addresses, _MOST_ADDRESSES)}" if addresses else ""
        count = sum(each.count for each in same)
        lines.append(f"{one.file}:{one.line_number}: {id} (x{count}){at}")
        lines.append(_wrapped(one.line))
        for text in (f"Cause: {one.known.cause}", f"Remedy: {one.known.remedy}"):
            if text not in told:
                told.add(text)
                lines.append(_wrapped(text))
    return "\n".join(lines)


def _follows(reader: FailureReader) -> bool:
    """Returns whether this log has no failure, or one that another task's failure has caused."""
    first = reader.first()
    return first is None or first.follows


def _wrapped(text: str) -> str:
    return textwrap.fill(
        text,
        width=max(40, shutil.get_terminal_size().columns),
        initial_indent="    ",
        subsequent_indent="      ",
        break_on_hyphens=False,
    )
