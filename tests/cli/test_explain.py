"""`slurm-resolver explain`: its output and its exit status."""

from __future__ import annotations

import os
import re
import subprocess
from pathlib import Path

import pytest
from captured import Captured, Patch
from folders import DATA
from local_run import COMMAND

from slurm_resolver.cli import main

LOGS = DATA / "logs"


@pytest.fixture
def log(tmp_path: Path, monkeypatch: Patch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "80")
    path = tmp_path / "slurm-8.out"
    path.write_bytes(b"\xff\n" + (LOGS / "time-limit.log").read_bytes())
    return path


def test_text(log: Path, capsys: Captured) -> None:
    assert main(["explain", log.name]) == 1
    captured = capsys.readouterr()
    assert captured.err == ""
    assert (
        captured.out
        == """\
slurm-8.out:3: time-limit (x1) at n9
    slurmstepd-n9: error: *** STEP 8.0 ON n9 CANCELLED AT 2026-11-21T02:39:13
      DUE TO TIME LIMIT ***
    Cause: The job reached its time limit.
    Remedy: Ask for more time (sbatch --time), or save on a signal before it:
      --signal=USR1@120
"""
    )


def test_what_a_log_holds_does_nothing_to_the_terminal(log: Path, capsys: Captured) -> None:
    told = b"TIME LIMIT ***"
    address = b"slurmstepd-n\x1b[2J9: error: *** STEP 8.0 ON n\x1b[2J\x9b9 CANCELLED AT 2026 ***\n"
    log.write_bytes(log.read_bytes().replace(told, told + b" \x1b]0;x\x07\x1b[31m \xc2\x9b31m"))
    log.write_bytes(log.read_bytes() + address + b"execve(): \x1b[3J/x: No such file\n")
    assert main(["explain", log.name]) == 1
    printed = capsys.readouterr().out
    assert all(character.isprintable() or character == "\n" for character in printed)
    assert "]0;x" in printed
    assert "at n [2J" in printed
    log.write_bytes(
        b"slurm_resolver: usage of fit: 1 epoch\x1b]0;y\x07\n"
        b"worker 1 (rank 1 on n\x1b]0;z\x079) is lost: its process has ended\n"
    )
    assert main(["explain", log.name]) == 1
    assert capsys.readouterr().out == (
        "rank 1 on n ]0;z 9 failed first: its process has ended (slurm-8.out:2)\n"
        "usage of fit: 1 epoch ]0;y\n"
    )
    assert main(["explain", "\x1b[31m.log"]) == 2
    assert "\x1b" not in capsys.readouterr().err


def test_each_cause_and_remedy_is_printed_once(capsys: Captured) -> None:
    logs = [str(LOGS / f"{name}.log") for name in ("workers-differ", "workers-differ-type")]
    assert main(["explain", *logs]) == 1
    out = capsys.readouterr().out
    assert out.startswith("rank 1 on n10 failed first: ")
    explanations = re.findall(r"^    (?:Cause|Remedy): (?:.*\n(?: {6}.*\n)*)", out, re.M)
    assert len(explanations) == len(set(explanations)) > 4


END = b"srun: error: n9: task 1: Exited with exit code 1\n"


@pytest.mark.parametrize(
    ("before", "logs", "is_said"),
    [
        (b"Epoch 1/2\n", 1, True),
        (b" 1: Epoch 1/2\n", 1, False),
        (b"Epoch 1/2\n", 2, False),  # one for each task
    ],
)
def test_ranks_are_advised_for_a_log_without(
    before: bytes, logs: int, is_said: bool, log: Path, capsys: Captured
) -> None:
    log.write_bytes(before + END)
    assert main(["explain", *[log.name] * logs]) == 1
    out = " ".join(capsys.readouterr().out.split())
    assert "Remedy: The output of the task that failed first says why." in out
    advice = " srun --label --kill-on-bad-exit=1 python train.py shows the rank before each line."
    assert (advice in out) == is_said
    assert "{" not in out


def test_a_file_that_cannot_be_read_does_not_hide_the_others(log: Path, capsys: Captured) -> None:
    assert main(["explain", "missing.out", ".", log.name]) == 2
    captured = capsys.readouterr()
    assert captured.out.startswith("slurm-8.out:3: time-limit (x1) at n9\n")
    assert captured.err == (
        "slurm-resolver explain: missing.out: No such file or directory\n"
        "slurm-resolver explain: .: Is a directory\n"
    )
    log.write_bytes(b"epoch 1\n")
    assert main(["explain", log.name]) == 0
    told = capsys.readouterr()
    assert told.out == ""
    assert told.err.startswith("slurm-resolver explain: no failure found. If the job failed, ask ")


def test_standard_input() -> None:
    done = subprocess.run(
        [*COMMAND, "explain", "-"],
        input=b"\x80 caf\xc3\xa9 Collective ops is aborted by: x\n",
        capture_output=True,
        env={
            **os.environ,
            "COLUMNS": "200",
            "PYTHONIOENCODING": "ascii",
        },
    )
    assert (done.returncode, done.stderr) == (1, b"")
    assert done.stdout.splitlines()[:2] == [
        b"-:1: collective-aborted (x1)",
        rb"    \ufffd caf\xe9 Collective ops is aborted by: x",
    ]


@pytest.mark.parametrize(
    "folder", sorted((DATA / "several_logs").iterdir()), ids=lambda at: at.name
)
def test_several_logs_and_starts(folder: Path, monkeypatch: Patch, capsys: Captured) -> None:
    """The file `expected` has the line of the first failure."""
    monkeypatch.chdir(folder)
    expected = Path("expected").read_text()
    logs = sorted(path.name for path in folder.iterdir() if path.name != "expected")
    assert main(["explain", *logs]) == int(bool(expected))
    found = re.findall(r"^.*failed first: .*$\n", capsys.readouterr().out, re.M)
    assert "".join(found) == expected
