"""The local launcher's output."""

from __future__ import annotations

import os

import pytest
from local_run import in_step, piped, run_script

# A task's output in these tests: a complete line on each stream, and an incomplete line.
SPEAK = "echo out $SLURM_PROCID; echo err $SLURM_PROCID >&2; printf tail"


def test_output_on_the_screen() -> None:
    done = run_script("-n 2", SPEAK)
    assert sorted(done.stdout.splitlines()) == ["0: out 0", "0: tail", "1: out 1", "1: tail"]
    assert sorted(done.stderr.splitlines()) == ["0: err 0", "1: err 1"]
    # lines of different tasks do not mix
    loop = "i=0; while [ $i -lt 300 ]; do printf $SLURM_PROCID; printf '%020d' $i; echo;"
    done = run_script(
        "-n3 --no-label",
        loop + "i=$((i+1)); done; printf $SLURM_PROCID-end",
    )
    expected = [f"{rank}{number:020d}" for rank in range(3) for number in range(300)]
    assert sorted(done.stdout.splitlines()) == sorted([*expected, "0-end", "1-end", "2-end"])


def test_a_task_whose_output_nobody_reads_ends() -> None:
    with piped(in_step("-n2", "yes")) as process:
        assert process.stdout.readline() in ("0: y\n", "1: y\n")
        process.stdout.close()
        assert "was ended by SIGPIPE" in process.stderr.read()
        assert process.wait(timeout=180) == 128 + 13


NOTES = """\
WARNING: All log messages before absl::InitializeLog() is called are written to STDERR
I0000 00:00:1795485468.023534    4090 port.cc:153] oneDNN custom operations are on. You may see
I0000 00:00:1795485468.024039    4090 cudart_stub.cc:31] Could not find cuda drivers on your machine
"""


@pytest.mark.parametrize(
    ("level", "shown"),
    [
        (None, "1\nE0000\n"),
        ("0", f"0\n{NOTES}E0000\n"),
    ],
)
def test_tensorflows_notes_are_left_out_unless_asked_for(level: str | None, shown: str) -> None:
    environ = {name: value for name, value in os.environ.items() if not name.startswith("TF_CPP")}
    environ.update({"TF_CPP_MIN_LOG_LEVEL": level} if level else {})
    done = run_script(
        "--no-label -n 1",
        f"echo $TF_CPP_MIN_LOG_LEVEL >&2; echo '{NOTES}E0000' >&2",
        status=0,
        env=environ,
    )
    assert done.stderr == shown
