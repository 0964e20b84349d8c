"""A training without Slurm that is saved on a signal, and goes on at the same step."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any, List, NamedTuple

import pytest
from folders import HELPERS
from resumed import outcomes, saved_position

pytest.importorskip("keras", minversion="3", reason="this TensorFlow has Keras 2")

pytestmark = pytest.mark.tensorflow


PROGRAM = [sys.executable, str(HELPERS / "slurm_train.py")]
KINDS = ["keras", "keras2"]


def train(kind: str, folder: Path, *more: str) -> subprocess.CompletedProcess[str]:
    folder.mkdir(exist_ok=True)
    command = [*PROGRAM, kind, "--per-epoch=1", str(folder), *more]
    return subprocess.run(command, capture_output=True, text=True)


def told(folder: Path, what: str) -> List[Any]:
    lines = map(json.loads, (folder / "rank.0.jsonl").read_text().splitlines())
    return [line[what] for line in lines if what in line]


class Training(NamedTuple):
    """One that nothing happened to, and one that was broken off again and again."""

    whole: Path
    resumed: Path
    said: List[str]  # what each start of the second wrote


@pytest.fixture(scope="module", params=KINDS)
def training(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Training:
    """It was saved twice on a signal, on one in a validation, and has ended."""
    kind: str = request.param
    whole, resumed = tmp_path_factory.mktemp("whole"), tmp_path_factory.mktemp("resumed")
    assert train(kind, whole).returncode == 0
    starts: List[subprocess.CompletedProcess[str]] = []
    for fault in ('[0, 3, "SIGUSR1"]', '[0, 13, "SIGTERM"]', '[0, 20, "SIGTERM in validation"]'):
        faults = f"--faults=[{'null, ' * len(starts)}{fault}]"
        starts.append(train(kind, resumed, "--sleep=0.4", faults))
    assert [start.returncode for start in starts] == [75] * 3, starts[-1].stderr
    assert saved_position(resumed / "checkpoints") == {"epoch": 1, "step": 10}
    starts += [train(kind, resumed), train(kind, resumed)]
    assert [start.returncode for start in starts[3:]] == [0, 0], starts[-1].stderr
    return Training(whole, resumed, [start.stderr for start in starts])


def test_alone_it_goes_on_at_the_same_step(training: Training) -> None:
    assert told(training.resumed, "done") == list(range(1, 41))
    (weights,) = told(training.whole, "weights")
    assert told(training.resumed, "weights") == [weights] * 2


def test_the_history_and_the_other_callbacks_go_on_as_well(training: Training) -> None:
    """EarlyStopping ends both after the fourth epoch, of eight."""
    for what in ("history", "epochs"):
        (expected,) = told(training.whole, what)
        assert told(training.resumed, what) == [expected] * 2


def test_it_says_where_it_goes_on(training: Training) -> None:
    folder = training.resumed / "checkpoints"
    assert "resumes" not in training.said[0]
    assert "because of SIGTERM: exit status 75: start the program again" in training.said[1]
    going_on = f"training resumes from {folder}/ckpt-3, saved at step 10 of epoch 2"
    assert training.said[3].count(going_on) == 1
    assert f"nothing is left to train: {folder}/ckpt-4 was saved after epoch 8" in training.said[4]


@pytest.mark.nightly
@pytest.mark.parametrize(
    ("strategy", "cases"),
    [
        ("get_strategy", []),
        ("MirroredStrategy", ["one_iterator_for_all", "dropout_and_normalization"]),
    ],
)
def test_broken_off_and_resumed_all_ways_of_training_end_the_same(
    strategy: str, cases: List[str]
) -> None:
    """With Keras 3; test_contract.py does it with Keras 2."""
    for name, ended in outcomes("--strategy", strategy, *cases).items():
        assert "error" not in ended["whole"], (name, ended)
        assert ended["resumed"] == ended["whole"], name


@pytest.mark.parametrize("training", ["keras"], indirect=True)
def test_ranks_that_find_different_checkpoints_say_so(tmp_path: Path, training: Training) -> None:
    """As on folders that the nodes do not share."""
    folders = f'[ $SLURM_PROCID = 0 ] && own={training.resumed} || own={tmp_path}; exec "$@" $own'
    launcher = [sys.executable, "-m", "slurm_resolver", "run", "-n2", "--", "bash", "-c", folders]
    done = subprocess.run([*launcher, "bash", *PROGRAM, "keras"], capture_output=True, text=True)
    assert done.returncode == 1
    assert "ResumeError: the ranks find different checkpoints in" in done.stderr
    assert re.search(r": worker 0 \(.*\): ckpt-4 and ckpt-3; worker 1 \(.*\): none", done.stderr)


def test_a_planned_preemption_finds_something_to_save(tmp_path: Path) -> None:
    """It comes after the first step, however long the start takes."""
    launcher = [sys.executable, "-m", "slurm_resolver", "run", "--requeue", "--preempt-after", "0"]
    program = [*PROGRAM, "loop", str(tmp_path), "--epochs=1", "--sleep=0.3"]
    done = subprocess.run([*launcher, "--", *program], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert told(tmp_path, "done") == list(range(1, 11))
    assert "restart 1 of at most 5: the step was preempted" in done.stderr
    assert "training resumes from" in done.stderr
    assert "nothing was saved" not in done.stderr
