"""The tasks of a step on this machine meet, as those of srun do."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any, List

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


def test_a_task_that_does_not_come_to_check(tmp_path: Path) -> None:
    script = f'[ "$SLURM_PROCID" = 1 ] || exec {" ".join(COMMAND)} check --json --timeout 2'
    done = run(tmp_path, 3, "bash", "-c", script)
    assert done.returncode == 1
    (line,) = done.stdout.splitlines()
    (presence,) = json.loads(line)["checks"]
    assert presence["status"] == "failed"
    assert "1 of 3 tasks did not come to " in presence["detail"]
    assert "worker 1 (rank 1 on localhost)" in presence["detail"]
