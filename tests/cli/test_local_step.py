"""The tasks of a step on this machine meet, as those of srun do."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any, List

import pytest

COMMAND = [sys.executable, "-m", "slurm_resolver"]


def run(folder: Path, tasks: int, *words: str) -> subprocess.CompletedProcess[str]:
    """Runs a command in each task, without their numbers before the lines."""
    step = [*COMMAND, "run", "-n", str(tasks), "--no-label", "--", *words]
    return subprocess.run(step, cwd=folder, capture_output=True, text=True, timeout=120)


def test_tasks_tell_each_other_where_they_run(tmp_path: Path) -> None:
    show = [*COMMAND, "show", "--json", "--layout", "rendezvous"]
    done = run(tmp_path, 3, *show, "--jobs", "ps=1,worker=-1")
    assert done.returncode == 0, done.stderr
    told: List[Any] = [json.loads(line) for line in done.stdout.splitlines()]
    assert sorted(one["self"]["rank"] for one in told) == [0, 1, 2]
    assert {one["layout_source"] for one in told} == {"rendezvous"}
    assert told[0]["tasks"] == told[1]["tasks"] == told[2]["tasks"]


def test_check_in_every_task(tmp_path: Path) -> None:
    done = run(tmp_path, 3, *COMMAND, "check", "--json")
    (line,) = done.stdout.splitlines()  # printed once
    checks = {check["id"]: check for check in json.loads(line)["checks"]}
    assert checks["presence"]["detail"] == "all 3 tasks have come"
    for name in ("layout", "agreement", "names", "ports", "reach"):
        assert checks[name]["status"] == "ok", checks[name]


def test_a_task_that_does_not_come_to_check(tmp_path: Path) -> None:
    script = f'[ "$SLURM_PROCID" = 1 ] || exec {" ".join(COMMAND)} check --json --timeout 2'
    done = run(tmp_path, 3, "bash", "-c", script)
    assert done.returncode == 1
    (line,) = done.stdout.splitlines()
    (presence,) = json.loads(line)["checks"]
    assert presence["status"] == "failed"
    assert "1 of 3 tasks did not come to " in presence["detail"]
    assert "worker 1 (rank 1 on localhost)" in presence["detail"]


NOTES = """\
WARNING: All log messages before absl::InitializeLog() is called are written to STDERR
I0000 00:00:1795485468.023534    4090 port.cc:153] oneDNN custom operations are on. You may see
I0000 00:00:1795485468.024039    4090 cudart_stub.cc:31] Could not find cuda drivers on your machine
"""


@pytest.mark.parametrize(("level", "shown"), [(None, "1\nE0000\n"), ("0", f"0\n{NOTES}E0000\n")])
def test_tensorflows_notes_are_left_out_unless_asked_for(level: str, shown: str) -> None:
    script = f"echo $TF_CPP_MIN_LOG_LEVEL >&2; echo '{NOTES}E0000' >&2"
    environ = {name: value for name, value in os.environ.items() if not name.startswith("TF_CPP")}
    environ.update({"TF_CPP_MIN_LOG_LEVEL": level} if level else {})
    step = [*COMMAND, "run", "--no-label", "-n", "2", "-o", "0", "--", "bash", "-c", script]
    done = subprocess.run(step, capture_output=True, text=True, timeout=120, env=environ)
    assert (done.returncode, done.stderr) == (0, shown)
