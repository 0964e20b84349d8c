"""`slurm-resolver explain`: what the messages in the log of a failed run mean.

The logs of one job belong together: the task that failed first is looked for in all.
"""

from __future__ import annotations

import os
import re
import shutil
import textwrap
from argparse import Namespace
from collections.abc import Sequence
from operator import itemgetter

from slurm_resolver.diagnostics.first_failure import FailureReader
from slurm_resolver.diagnostics.known_messages import CAUSES
from slurm_resolver.diagnostics.log_starts import read_last_start
from slurm_resolver.diagnostics.message_search import Finding, printable, search
from slurm_resolver.log import print_line
from slurm_resolver.wording import shorten

DESCRIPTION = """\
Reads logs and explains the messages of TensorFlow, gRPC, CUDA, NCCL and Slurm that it knows: the
cause, the task that the message names, and the remedy. The first line names what failed first.
All logs are taken for those of one job. If it was started several times, the last start counts.
The lines with which trainings said where their time went come last."""

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
_REPORT = 1  # see _order
# How others say that a task ended, unless SIGKILL, a crash or its node has ended it.
_RAISED = re.compile(
    r"its process (?:has )?ended|[\w.]+: |\w+(?:Error|Exception|Interrupt|Exit)\.?$"
    r"|(?:Exited with exit code|exit status) (?!13[79])"
)
_LABEL = " srun --label --kill-on-bad-exit=1 python train.py shows the rank before each line."


OPTIONS = {"logs LOGFILE": "a log, or - for standard input (default)"}


def main(args: Namespace) -> int:
    """Prints the findings; returns 0 for no failure, 1 for one, 2 if a file cannot be read."""
    logs = []
    status = 0
    for path in args.logs or ["-"]:
        name = printable(path)
        try:
            with open(0 if path == "-" else path, "rb") as stream:
                written_at = os.fstat(stream.fileno()).st_mtime
                logs.append((written_at, read_last_start(stream, name)))
        except OSError as error:
            print_line(f"{name}: {error.strerror or error}", "slurm-resolver explain")
            status = 2
    # The other tasks end after the one that failed first, and so do their logs.
    readers = [reader for _, reader in sorted(logs, key=itemgetter(0))]
    has_failed = any(reader.has_failed for reader in readers)
    usage = [line for reader in readers for line in reader.usage]
    for line in [*_explain(readers, has_failed), *usage]:
        print(line)
    if not has_failed and not status:
        print_line(_NO_FAILURE, "slurm-resolver explain")
    return status or int(has_failed)


def _explain(readers: Sequence[FailureReader], has_failed: bool) -> list[str]:
    """Returns the lines that explain a job's last start, with each cause and remedy once.

    The first of the `readers` read the log that was written first.
    """
    readers = sorted(readers, key=_order)
    findings = [
        finding
        for reader in readers
        for finding in reader.findings()
        if has_failed or finding.known.kind != "effect"  # a connection may have failed for a time
    ]
    lines = []
    first = readers[0].first() if readers else None
    if first and not first.follows:
        # The findings of the first failure come first.
        file = readers[0].file
        known, _ = search(first.line)
        findings.sort(
            key=lambda finding: (
                finding.file != file,
                finding.known.kind not in CAUSES,
                finding.line_number != first.line_number and finding.known is not known,
            )
        )
        after = ""
        if first.is_end and findings:
            cause = findings[0]
            if cause.file == file and cause.known.kind in CAUSES:
                after = f", after: {cause.line}"
        task = first.task
        if not task:  # its own log does not say which it is, but another one may name its end
            reports = [reader.first() for reader in readers if _order(reader) == _REPORT]
            ends = {report.task for report in reports if report}
            task = ends.pop() if len(ends) == 1 else ""
        line = f"{task} failed first: {first.line}{after} ({file}:{first.line_number})"
        lines.append(printable(line))
    is_labelled = len(readers) != 1 or readers[0].is_labelled
    return lines + _describe_findings(findings, "" if is_labelled else _LABEL)


def _describe_findings(findings: Sequence[Finding], label: str) -> list[str]:
    """Returns where each kind of message is, with its tasks, and its cause and remedy.

    Each text is there once.

    Args:
        findings: those of a kind need not follow each other.
        label: what remedies say about a log without the tasks' ranks.
    """
    lines = []
    for known in dict.fromkeys(finding.known for finding in findings):
        same = [finding for finding in findings if finding.known is known]
        first = same[0]
        count = sum(finding.count for finding in same)
        addresses = [*dict.fromkeys(finding.address for finding in same if finding.address)]
        at = f" at {shorten(addresses)}" if addresses else ""
        lines += [
            f"{first.file}:{first.line_number}: {known.id} (x{count}){at}",
            _wrapped(first.line),
            _wrapped(f"Cause: {known.cause}"),
            _wrapped(f"Remedy: {known.remedy.replace('{label}', label)}"),
        ]
    return [*dict.fromkeys(lines)]


def _order(reader: FailureReader) -> int:
    """Returns the place of a log among those of a job, by the first failure in it.

    The last ones have none, or one that another task's failure has caused. Before them come those
    that only say how a task ended: that task's own log may have the error.
    """
    first = reader.first()
    if not first or first.follows:
        return _REPORT + 1
    return _REPORT if first.is_end and _RAISED.match(first.line) else 0


def _wrapped(text: str) -> str:
    return textwrap.fill(
        text,
        width=max(40, shutil.get_terminal_size().columns),
        initial_indent="    ",
        subsequent_indent="      ",
        break_on_hyphens=False,
    )
