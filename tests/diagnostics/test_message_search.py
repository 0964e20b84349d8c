"""`explain` finds the known messages and the first failure in logs of real runs."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from explained import explained, last_start
from folders import DATA
from hypothesis import given
from hypothesis import strategies as st
from kinds import Strings
from phrases import phrases

from slurm_resolver.diagnostics.known_messages import MESSAGES
from slurm_resolver.diagnostics.message_search import Finding

LOGS = DATA / "logs"
KNOWN_MESSAGES = [known for known in MESSAGES.values() if known.cues and known.kind != "hidden"]
NAMES = sorted(path.stem for path in LOGS.glob("*.log"))


def expected() -> dict[str, Strings]:
    """Returns the lines below each log's name in expected.txt."""
    text = (LOGS / "expected.txt").read_text(encoding="utf-8")
    blocks = [block.splitlines() for block in text.split("\n\n")]
    return {name: [line.strip() for line in lines] for name, *lines in blocks}


EXPECTED = expected()


def short(findings: list[Finding]) -> Strings:
    """Returns each message with its count and task, as expected.txt has them."""
    return [
        f"{finding.known.id} x{finding.count}"
        + (f" at {finding.address}" if finding.address else "")
        for finding in findings
    ]


@pytest.mark.parametrize("name", NAMES)
def test_logs_of_real_runs(name: str) -> None:
    """Each message is found with its count and task, and so is the task that failed first."""
    data = (LOGS / f"{name}.log").read_bytes()
    findings = explained(data)
    found = short(findings)
    failure = last_start(data).first()
    if failure is not None and not failure.follows:
        found.append(
            f"first {failure.task}, line {failure.line_number}: {failure.line[:60]}".rstrip()
        )
    assert found == EXPECTED[name]
    for finding in findings:
        assert finding.line[:30] in data.decode().split("\n")[finding.line_number - 1]
        assert len(finding.line) <= 200


def test_every_message_has_a_log() -> None:
    assert sorted(EXPECTED) == NAMES
    found = {line.split(" ")[0] for lines in EXPECTED.values() for line in lines}
    found |= {line.split(" ")[0] for phrase in phrases().values() for line in phrase.told}
    assert {known.id for known in KNOWN_MESSAGES} <= found


def test_the_commands_of_remedies_can_be_pasted() -> None:
    assert [known.id for known in MESSAGES.values() if re.search(r"[ \w]…", known.remedy)] == []


@pytest.mark.parametrize("path", sorted((LOGS / "good").iterdir()), ids=lambda path: path.stem)
def test_the_logs_of_good_runs_have_none(path: Path) -> None:
    lines = path.read_text(encoding="utf-8").splitlines()
    assert len(lines) > 10
    assert explained(lines) == []


def test_the_end_of_the_first_task_is_told_where_it_aborts_something() -> None:
    """Lines that are harmless at a good end count once another line says what they aborted."""
    lines = (LOGS / "good" / "leader-ends-first.log").read_text().splitlines()
    aborted = "1: Collective ops is aborted by: Failed to send RPC to coordination service."
    assert {finding.known.id for finding in explained([*lines, aborted])} == {
        "leader-lost",
        "peer-refused",
    }


def test_numbers_count_lines_not_carriage_returns() -> None:
    (finding,) = explained(
        b"ok\r\n" + b"1/9\r2/9\rsrun: error: n9: task 0: Exited with exit code 1\r\nok\r\n" * 2
    )
    assert (finding.line_number, finding.count) == (2, 2)
    assert finding.line == "srun: error: n9: task 0: Exited with exit code 1"


def test_the_message_is_seen_in_a_long_line() -> None:
    message = "Lmod has detected the following error: "
    (finding,) = explained([f"{'x' * 500}{message}{'y' * 500}"])
    assert finding.line.startswith(f"{'x' * 40}{message}{'y' * 100}")


def test_a_line_without_an_end_is_read_in_pieces() -> None:
    (finding,) = explained(["x" * 1024 * 1024 + "Lmod has detected the following error: "])
    assert finding.line.startswith("Lmod")


BAR = b"".join(b"\r%d%%|####    | %d/9000 [00:10, loss=0.1]" % (i // 90, i) for i in range(400))
KERAS_BAR = "\r13/99 ━━━━━━━━ 4s 5ms/step - accuracy: 0.1250 - loss: 1.2779".encode()
ERRORS = {
    "a bar of Keras": b"Epoch 1/2\n" + KERAS_BAR,
    "a progress bar without a line's end": BAR,
    "an error without a traceback, in another thread or at the end of a child": (
        b"Exception ignored in: <_io.TextIOWrapper name='<stdout>' mode='w'>\n"
        b"BrokenPipeError: [Errno 32] Broken pipe\n"
    ),
}


@pytest.mark.parametrize("before", ERRORS.values(), ids=list(ERRORS))
@pytest.mark.parametrize("label", [b"", b"3: "], ids=["", "labelled"])
def test_the_error_is_found_after(before: bytes, label: bytes) -> None:
    log = before + b"Traceback (most recent call last):\nValueError: no\n" + b"bye\n" * 5
    first = last_start(label + log.replace(b"\n", b"\n" + label)).first()
    assert first
    assert first.line == "ValueError: no"


@pytest.mark.parametrize(
    "line", ["Fatal Python error: Aborted", "F0000 00:00:1795.84 8292 x.cc:221] Check failed: a"]
)
def test_the_end_of_a_process_is_found_after_a_bar(line: str) -> None:
    first = last_start(KERAS_BAR + f"{line}\n{ENDS}".encode()).first()
    assert first
    assert first.line == line


ENDS = "srun: error: n2: task 1: Exited with exit code 1\n"


@pytest.mark.parametrize("how", ["Killed", "Segmentation fault", "Exited with exit code 1"])
def test_the_end_of_a_task_is_found_after_a_bar(how: str) -> None:
    """As srun 26.05 writes it if one file has both outputs."""
    killed = f"srun: error: n9: task 0: {how}\nsrun: Terminating StepId=5.0\n"
    first = last_start(KERAS_BAR + f"{killed}{ENDS}".encode()).first()
    assert first
    assert (first.task, first.line) == ("rank 0 on n9", how)
    by_run = b"slurm-resolver run: task 0 was ended by SIGKILL; ending the other tasks\n"
    first = last_start(KERAS_BAR + by_run).first()
    assert first
    assert (first.task, first.line) == ("rank 0", "SIGKILL")
    nested = f"3: {killed}3: Traceback (most recent call last):\n3: ValueError: no\n"
    first = last_start(nested.encode()).first()
    assert first
    assert first.task == "rank 3"


MISSING = "ModuleNotFoundError: No module named 'nump'"  # which is whole
NEXT = "coordination_service.cc:221] Initializing CoordinationService\n"


@pytest.mark.parametrize("label", ["", "{}: "], ids=["", "labelled"])
@pytest.mark.parametrize(
    ("ends", "first"),
    [
        (ENDS, MISSING),  # of a task that is faster than rank 0
        (ENDS + ENDS.replace("1:", "0:"), None),
        (ENDS + "srun: Terminating StepId=1.0\n", None),
    ],
    ids=["others start", "all have ended", "all are being ended"],
)
def test_a_start_has_ended_only_with_its_leader(ends: str, first: str | None, label: str) -> None:
    error = ["Traceback (most recent call last):\n", f"{MISSING}\n"]
    log = "".join(label.format(1) + line for line in error) + ends + label.format(0) + NEXT
    found = last_start(log.encode()).first()
    assert (found and found.line) == first


PIECES = [cue.encode() for known in KNOWN_MESSAGES for cue in known.cues.split("|")]
PIECES += [b"\n", b"\r", b"\xff", b"/job:ps/task:1", b"0: ", b"Traceback (most recent call last)"]
PIECES += [b"\n  x\nE: 2\n", b"srun: error: n2: tasks 4-7: Killed\n", b"srun: "]


@given(st.lists(st.sampled_from(PIECES) | st.binary(max_size=50)))
def test_any_bytes(parts: list[bytes]) -> None:
    data = b"".join(parts)
    found = explained(data)
    first = last_start(data).first()
    assert first is None or first.line
    assert all(finding.count >= 1 for finding in found)
    assert [finding.line_number for finding in found] == sorted(
        finding.line_number for finding in found
    )
