"""The table of known messages on logs of real runs, and its bounds."""

from __future__ import annotations

import inspect
import io
import re
import traceback
import tracemalloc
from pathlib import Path
from typing import Any, Iterator, List, Optional, Tuple

import pytest
from folders import DATA
from hypothesis import given
from hypothesis import strategies as st

from slurm_resolver import errors
from slurm_resolver.diagnostics.known_messages import KNOWN_MESSAGES
from slurm_resolver.diagnostics.log_messages import Finding, explain, explain_file

LOGS = DATA / "logs"
WORKER_0, WORKER_1 = "/job:worker/replica:0/task:0", "/job:worker/replica:0/task:1"

Short = Tuple[str, Optional[str], int]

CASES: List[Tuple[str, List[Short]]] = [
    ("barrier-failed", [("barrier-failed", None, 1)]),
    ("cancelled", [("cancelled", "n9", 1)]),
    ("cancelled-26.05", [("cancelled", "n8", 2)]),
    ("collective-aborted", [("collective-aborted", None, 1)]),
    (
        "command-not-found",
        [
            ("command-not-found", "nosuchprogram", 1),
            ("command-not-found", "slurm-resolverx", 1),
            ("task-failed", "n8: task 0", 1),
        ],
    ),
    ("deadline-exceeded", [("deadline-exceeded", None, 5), ("leader-lost", None, 3)]),
    (
        "ended-after-failure",
        [("task-crashed", "n8: task 1", 1), ("ended-after-failure", "n8", 1)],
    ),
    (
        "fit-failed",
        [
            ("fit-failed", "worker 1", 6),
            ("task-failed", "n9: task 0", 1),
            ("task-failed", "n10: task 1", 1),
        ],
    ),
    ("folder-not-found", [("folder-not-found", "/nonexistent", 2)]),
    ("gpu-libraries-missing", [("gpu-libraries-missing", None, 1)]),
    ("gpu-ordinal", [("gpu-ordinal", None, 1)]),
    ("gpu-out-of-memory", [("gpu-out-of-memory", None, 1), ("gpu-out-of-memory", WORKER_1, 1)]),
    ("gpu-used-twice", [("gpu-used-twice", None, 1)]),
    (
        "host-not-resolved",
        [("host-not-resolved", "nosuchnode:33917", 8), ("peer-call-failed", WORKER_1, 4)],
    ),
    (
        "host-not-resolved-2.15",
        [
            ("host-not-resolved", None, 3),
            ("peer-call-failed", WORKER_1, 3),
            ("host-not-resolved", "nosuchnode:59065", 3),
        ],
    ),
    ("job-without-strategy", [("job-without-strategy", "ps", 1)]),
    ("keras-3-fit", [("keras-3-fit", None, 1)]),
    ("keras-3-fit-servers", [("keras-3-fit-servers", None, 1)]),
    (
        "leader-lost",
        [
            ("leader-lost", None, 4),
            ("leader-lost", WORKER_0, 4),
            ("peer-refused", "127.0.0.1:53245", 4),
        ],
    ),
    ("no-allocation", [("no-allocation", None, 1)]),
    ("no-gpu", [("no-gpu", None, 1)]),
    ("no-worker", [("no-worker", None, 2)]),
    ("node-failed", [("node-failed", "n9", 2)]),
    ("not-granted", [("not-granted", None, 3)]),
    ("not-granted-26.05", [("not-granted", None, 5)]),
    ("out-of-memory", [("out-of-memory", None, 2), ("out-of-memory", "n10: task 7", 1)]),
    (
        "parameter-server-lost",
        [
            ("worker-lost", WORKER_0, 2),
            ("peer-refused", "127.0.0.1:55611", 10),
            ("parameter-server-lost", "/job:ps/replica:0/task:0", 4),
            ("peer-call-failed", WORKER_0, 2),
        ],
    ),
    (
        "peer-closed",
        [
            ("worker-lost", WORKER_0, 2),
            ("peer-closed", None, 4),
            ("parameter-server-lost", "/job:ps/replica:0/task:0", 2),
            ("peer-call-failed", WORKER_0, 2),
            ("peer-closed", "/job:ps/replica:0/task:0", 2),
        ],
    ),
    ("peer-refused", [("peer-refused", "127.0.0.1:42697", 8), ("peer-call-failed", WORKER_1, 4)]),
    (
        "peer-refused-leader",
        [("peer-refused", "127.0.0.1:42421", 6), ("peer-call-failed", WORKER_0, 3)],
    ),
    (
        "peer-unreachable",
        [("peer-unreachable", "10.0.0.7:23001", 1), ("peer-unreachable", "[fd00::7]:23001", 1)],
    ),
    ("peer-unreachable-2.15", [("peer-unreachable", None, 4), ("peer-call-failed", WORKER_0, 2)]),
    ("port-taken", [("port-taken", "0.0.0.0:40449", 1), ("port-taken", None, 3)]),
    ("port-taken-2.15", [("port-taken", None, 4)]),
    ("preempted", [("preempted", "n9", 1)]),
    (
        "program-not-found",
        [
            ("task-failed", "n9: task 0", 1),
            ("task-failed", "n10: task 1", 1),
            ("program-not-found", "/nowhere/train.py", 2),
        ],
    ),
    (
        "program-not-allowed",
        [("program-not-allowed", "/home/me/train.py", 1), ("task-failed", "n8: task 0", 1)],
    ),
    (
        "program-not-found-26.05",
        [("program-not-found", "/no/interp", 1), ("task-failed", "n8: task 0", 1)],
    ),
    ("strategy-too-late", [("strategy-too-late", None, 2)]),
    ("tf-keras-missing", [("tf-keras-missing", None, 2)]),
    ("wrong-request", [("wrong-request", None, 3)]),
    ("requeued", [("requeued", "n9", 2)]),
    ("session-waits", [("session-waits", WORKER_1, 2)]),
    ("slurm-silent", [("slurm-silent", None, 2)]),
    ("step-waits", []),  # the step was created in the end
    (
        "strategy-scope",
        [
            ("strategy-scope", None, 2),
            ("task-failed", "n10: task 1", 1),
            ("task-failed", "n9: task 0", 1),
        ],
    ),
    ("task-crashed", [("task-crashed", "n10: task 1", 2), ("task-crashed", "n9: task 0", 3)]),
    ("task-exited", [("task-unhealthy", WORKER_1, 4)]),
    ("task-failed", [("task-failed", "n10: task 1", 2), ("cancelled", "n9", 1)]),
    ("task-restarted", [("task-restarted", WORKER_1, 7)]),
    ("task-unhealthy", [("task-unhealthy", WORKER_1, 4)]),
    ("task-unhealthy-2.15", [("task-unhealthy", WORKER_1, 5)]),
    ("tasks-missing", [("tasks-missing", None, 1)]),
    ("tensorflow-slurm-resolver-nvidia-smi", [("tensorflow-slurm-resolver", None, 1)]),
    ("tensorflow-slurm-resolver-range", [("tensorflow-slurm-resolver", None, 1)]),
    ("time-limit", [("time-limit", "n9", 1)]),
    (
        "workers-differ",
        [
            ("workers-differ", WORKER_1, 6),
            ("peer-call-failed", WORKER_0, 3),
            ("task-failed", "n10: task 1", 1),
            ("task-unhealthy", WORKER_1, 3),
            ("task-failed", "n9: task 0", 1),
        ],
    ),
    (
        "workers-differ-type",
        [
            ("workers-differ", None, 6),
            ("peer-call-failed", WORKER_0, 3),
            ("task-failed", "n10: task 1", 1),
            ("task-unhealthy", WORKER_1, 4),
            ("task-failed", "n9: task 0", 1),
        ],
    ),
]


def short(findings: List[Finding]) -> List[Short]:
    return [(finding.id, finding.address, finding.count) for finding in findings]


def peak_memory(stream: Any) -> Tuple[List[Finding], int]:
    tracemalloc.start()
    try:
        return explain_file(stream), tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


class Generated(io.RawIOBase):
    """A file that is made while it is read."""

    def __init__(self, chunks: Iterator[bytes]) -> None:
        self._chunks = chunks

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        chunk = next(self._chunks, b"")
        buffer[: len(chunk)] = chunk
        return len(chunk)


class TestLogs:
    @pytest.mark.parametrize(("name", "expected"), CASES, ids=[name for name, _ in CASES])
    def test_findings(self, name: str, expected: List[Short]) -> None:
        data = (LOGS / f"{name}.log").read_bytes()
        found = explain_file(io.BytesIO(data))
        assert short(found) == expected
        assert found == explain(data.decode().splitlines())
        for finding in found:
            whole = data.decode().split("\n")[finding.line_number - 1]
            assert finding.line.strip("… ")[:30] in whole
            assert len(finding.line) <= 204

    @pytest.mark.parametrize("path", sorted((LOGS / "good").iterdir()), ids=lambda path: path.stem)
    def test_the_logs_of_good_runs_have_none(self, path: Path) -> None:
        lines = path.read_text(encoding="utf-8").splitlines()
        assert len(lines) > 10
        assert explain(lines) == []

    def test_the_end_of_the_first_task_is_told_where_it_aborts_something(self) -> None:
        """The lines that mean nothing at a good end, and one about what they have aborted."""
        lines = (LOGS / "good" / "leader-ends-first.log").read_text().splitlines()
        aborted = "1: Collective ops is aborted by: Failed to send RPC to coordination service."
        assert {finding.id for finding in explain([*lines, aborted])} == {
            "leader-lost",
            "peer-refused",
        }
        unhealthy = (LOGS / "task-unhealthy.log").read_text().splitlines()
        (start,) = (n for n, line in enumerate(unhealthy) if "StartAbort" in line)
        assert short(explain(unhealthy[: start + 1])) == [("task-unhealthy", WORKER_1, 1)]

    def test_every_log_is_in_the_table_and_in_the_folders_readme(self) -> None:
        names = {path.stem for path in LOGS.glob("*.log")}
        assert names == {name for name, _ in CASES}
        readme = (LOGS / "README.md").read_text(encoding="utf-8")
        told = set(re.findall(r"[a-z0-9-]{5,}", readme))
        for name in names:
            assert (
                name in told or name.endswith(("-2.15", "-26.05")) or name.startswith("tensorflow-")
            ), name

    def test_every_message_of_others_has_a_log(self) -> None:
        found = {id for _, expected in CASES for id, _, _ in expected}
        own = {known.id for known in KNOWN_MESSAGES if known.id.endswith("-error")}
        assert {known.id for known in KNOWN_MESSAGES} - found - own == {
            "step-waits",
            "task-gone",
        }

    def test_the_table_is_consistent(self) -> None:
        ids = [known.id for known in KNOWN_MESSAGES]
        assert len(ids) == len(set(ids))
        for known in KNOWN_MESSAGES:
            assert re.fullmatch("[a-z0-9]+(-[a-z0-9]+)*", known.id)
            assert all(known.cues), "an empty cue would match every line"
            assert known.cause
            assert known.remedy
            assert "\n" not in known.cause + known.remedy


class TestOwnErrors:
    @pytest.mark.parametrize(
        "error", [e for e in vars(errors).values() if inspect.isclass(e)], ids=lambda e: e.__name__
    )
    def test_each_is_known_by_its_traceback(self, error: Any) -> None:
        arguments = ("reason", "n[3-1]", "3-1") if error is errors.HostlistError else ("reason",)
        try:
            raise error(*arguments)
        except errors.SlurmResolverError:
            (finding,) = explain(traceback.format_exc().splitlines())
        words = re.findall("[A-Z][a-z]+", error.__name__)
        assert finding.id == "-".join(words).lower()
        assert finding.cause == (error.__doc__ or "").partition("\n")[0]

    def test_a_task_that_is_gone(self) -> None:
        line = "WARNING:slurm_resolver:worker 1 (rank 1 on n9) is gone: its process has ended"
        assert short(explain([line])) == [("task-gone", "worker 1", 1)]


class TestLines:
    def test_a_step_that_is_not_created_waits(self) -> None:
        line = "srun: Job 2 step creation temporarily disabled, retrying (Requested nodes are busy)"
        assert short(explain([line])) == [("step-waits", None, 1)]
        assert short(explain([line, "srun: Step created for job 2", line])) == [
            ("step-waits", None, 1)
        ]

    def test_tasks_that_came_are_not_missing(self) -> None:
        lines = [
            f"coordination_service.cc:502] Waiting for {n}/2 tasks to connect." for n in (1, 0)
        ]
        assert short(explain(lines[:1])) == [("tasks-missing", None, 1)]
        assert explain(lines) == []

    def test_numbers_count_lines_not_carriage_returns(self) -> None:
        log = (
            b"ok\r\n" + b"1/9\r2/9\rsrun: error: n9: task 0: Exited with exit code 1\r\nok\r\n" * 2
        )
        (finding,) = explain_file(io.BytesIO(log))
        assert (finding.line_number, finding.count) == (2, 2)
        assert finding.line == "srun: error: n9: task 0: Exited with exit code 1"

    def test_what_is_shown_is_printable_and_near_the_message(self) -> None:
        line = "\x1b[31m" + "x" * 5000 + " \x00Collective ops is aborted by: \x07y" + "z" * 5000
        (finding,) = explain([line])
        assert finding.line.startswith("… xxx")
        assert finding.line.endswith("zzz …")
        assert "xxx  Collective ops is aborted by:  yzzz" in finding.line
        assert finding.line.isprintable()

    @pytest.mark.parametrize("start", [0, 65_500, 65_530, 65_536, 200_000])
    def test_a_message_within_a_long_line_counts_once(self, start: int) -> None:
        log = b"\xff" * start + b"Collective ops is aborted by: x" + b"y" * 100_000
        assert short(explain_file(io.BytesIO(log))) == [("collective-aborted", None, 1)]
        assert short(explain([log.decode("latin-1")])) == [("collective-aborted", None, 1)]

    def test_a_warning_that_is_no_failure(self) -> None:
        line = "Allocator ran out of memory trying to allocate 1GiB. This is {}a failure"
        assert explain([line.format("not ")]) == []
        assert short(explain([line.format("")])) == [("gpu-out-of-memory", None, 1)]

    def test_a_healthy_start_has_no_findings(self) -> None:
        lines = (LOGS / "task-unhealthy.log").read_text(encoding="utf-8").splitlines()
        assert "strategy 0" in lines
        assert explain(lines[: lines.index("strategy 0")]) == []


class TestBounds:
    @given(st.binary(max_size=2000))
    def test_any_bytes(self, data: bytes) -> None:
        assert isinstance(explain_file(io.BytesIO(data)), list)

    @given(st.lists(st.text()))
    def test_any_lines(self, lines: List[str]) -> None:
        assert isinstance(explain(lines), list)

    @given(
        st.lists(
            st.sampled_from(
                [cue.encode() for k in KNOWN_MESSAGES for cue in k.cues]
                + [b"\n", b"\r", b"\xff", b"/job:ps/task:1"]
            )
        )
    )
    def test_any_mixture_of_cues(self, parts: List[bytes]) -> None:
        found = explain_file(io.BytesIO(b"".join(parts)))
        assert all(finding.count >= 1 for finding in found)
        assert [f.line_number for f in found] == sorted(f.line_number for f in found)

    def test_a_line_of_50_megabytes(self) -> None:
        chunks = iter(
            [b"\xe2\x82\xff" * 2666 + b"\r"] * 6250 + [b" Collective ops is aborted by: x\n"]
        )
        found, peak = peak_memory(io.BufferedReader(Generated(chunks)))
        assert short(found) == [("collective-aborted", None, 1)]
        assert peak < 10e6

    def test_many_addresses_share_a_finding(self) -> None:
        bad = "UNAVAILABLE: failed to connect to all addresses; ipv4:10.0.0.1:{}"
        found = explain(bad.format(number % 500) for number in range(2500))
        assert len(found) == 101
        assert sum(finding.count for finding in found) == 2500
        assert [finding.count for finding in found if finding.address is None] == [2000]
