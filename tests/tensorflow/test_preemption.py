"""A training without Slurm that is saved on a signal, and goes on at the same step."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from pathlib import Path
from typing import Any, List

import pytest
from folders import HELPERS

pytestmark = pytest.mark.tensorflow


PROGRAM = [sys.executable, str(HELPERS / "slurm_train.py"), "keras", "--per-epoch=1"]


def train(folder: Path, *more: str) -> int:
    folder.mkdir(exist_ok=True)
    return subprocess.run([*PROGRAM, str(folder), *more], capture_output=True).returncode


def told(folder: Path, what: str) -> List[Any]:
    lines = map(json.loads, (folder / "rank.0.jsonl").read_text().splitlines())
    return [line[what] for line in lines if what in line]


@pytest.fixture(scope="module")
def resumed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A training that was saved before its time limit, then on a signal, and trained to its end."""
    folder = tmp_path_factory.mktemp("resumed")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("SLURM_JOB_END_TIME", str(int(time.time()) + 50))
        assert train(folder, "--sleep=0.1", '--options={"save_before_end": 50}') == 75
    assert train(folder, "--sleep=0.1", '--faults=[null, [0, 13, "SIGTERM"]]') == 75
    assert train(folder) == 0
    return folder


def test_alone_it_saves_on_a_signal_and_goes_on_at_the_same_step(
    tmp_path: Path, resumed: Path
) -> None:
    assert train(tmp_path) == 0
    assert told(resumed, "done") == list(range(1, 41))
    assert told(resumed, "weights") == told(tmp_path, "weights")


def test_ranks_that_find_different_checkpoints_say_so(tmp_path: Path, resumed: Path) -> None:
    """As on folders that the nodes do not share."""
    folders = f'[ $SLURM_PROCID = 0 ] && own={resumed} || own={tmp_path}; exec "$@" $own'
    launcher = [sys.executable, "-m", "slurm_resolver", "run", "-n2", "--", "bash", "-c", folders]
    done = subprocess.run([*launcher, "bash", *PROGRAM], capture_output=True, text=True)
    assert done.returncode == 1
    assert "ResumeError: the ranks find different checkpoints in" in done.stderr
    assert ": worker_0: ckpt-3 (epoch 4, step 0); worker_1: none" in done.stderr
