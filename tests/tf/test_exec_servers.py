"""`slurm-resolver exec` ends the servers of programs that only call `join()`."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import NamedTuple

import pytest
from kinds import Texts
from local_run import COMMAND, captured, in_step

ENVIRONMENT = {
    name: value for name, value in os.environ.items() if not name.startswith(("SLURM", "TF_CONFIG"))
}
PROGRAM = """
import json, os, pathlib, sys, time
import tensorflow as tf
config = json.loads(os.environ["TF_CONFIG"])
task = config["task"]
name = f"{task['type']} {task['index']}"
print(name, flush=True)
if name not in ACTS:
    cluster = tf.train.ClusterSpec(config["cluster"])
    tf.distribute.Server(cluster, task["type"], task["index"]).join()
exec(ACTS[name])
pathlib.Path(f"{name} ended").touch()
"""


class Case(NamedTuple):
    """The jobs, what the tasks do that only import TensorFlow, and the end of the step."""

    jobs: str
    acts: Texts
    status: int
    said: str = ""
    ended: tuple[str, ...] = ()  # tasks whose programs ended by themselves


LONG = "time.sleep(300)"
CASES = {
    "all have trained": Case(
        "ps=1,worker=-1",
        {"worker 0": "time.sleep(2)", "worker 1": ""},
        0,
        "",
        ("worker 0", "worker 1"),
    ),
    "workers that join beside a chief": Case(
        "chief=1,ps=1,worker=-1",
        {"chief 0": "time.sleep(2)"},
        0,
        "",
        ("chief 0",),
    ),
    "the leader is killed": Case(
        "ps=1,worker=-1",
        {"worker 0": "time.sleep(2); os.kill(os.getpid(), 9)", "worker 1": LONG},
        137,
        "worker 1 (rank 2 on localhost): worker 0 (rank 1 on localhost) has failed: ",
    ),
    "another worker fails": Case(
        "ps=1,worker=-1",
        {"worker 0": "time.sleep(2)", "worker 1": "raise ValueError('no')"},
        1,
        "worker 1 (rank 2 on localhost) has failed; the others continue: ValueError: no",
        ("worker 0",),
    ),
}


@pytest.mark.parametrize("name", CASES)
def test_servers_end_with_the_training(name: str, tmp_path: Path) -> None:
    case = CASES[name]
    program = [sys.executable, "-c", PROGRAM.replace("ACTS", repr(case.acts))]
    done = captured(
        [*in_step("-n3 -K0"), *COMMAND, "exec", "--jobs", case.jobs, "--", *program],
        cwd=tmp_path,
        env=ENVIRONMENT,
    )
    assert done.returncode == case.status, done.stderr
    assert case.said in done.stderr
    assert case.said or "slurm_resolver: " not in done.stderr
    assert {path.name for path in tmp_path.glob("* ended")} == {
        f"{task} ended" for task in case.ended
    }
