"""Without Slurm, a training saves on a signal and resumes at the same step."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
import tensorflow as tf
from folders import helper
from keras_marks import KERAS_3
from kinds import Completed, Counts
from local_run import captured, in_step

from slurm_resolver.tf.training.fit_state import unpack

pytestmark = KERAS_3

PROGRAM = helper("slurm_train.py")
POSITION = "slurm_resolver/.ATTRIBUTES/py_state"  # in a checkpoint


def train(kind: str, folder: Path, *more: str) -> Completed:
    folder.mkdir(exist_ok=True)
    return captured([*PROGRAM, kind, "--per-epoch=1", str(folder), *more])


def told(folder: Path, what: str) -> list[Any]:
    lines = map(json.loads, (folder / "rank.0.jsonl").read_text().splitlines())
    return [line[what] for line in lines if what in line]


def saved_position(folder: Path) -> Counts:
    """Returns the epoch and the step of a folder's newest checkpoint."""
    values = unpack(tf.train.load_checkpoint(str(folder)).get_tensor(POSITION))
    return {name: values[name] for name in ("epoch", "step")}


@pytest.mark.nightly  # test_preemption_on_slurm.py sends signals to such trainings as well
def test_saved_on_signals_it_ends_as_one_that_was_left_alone(tmp_path: Path) -> None:
    """The third signal comes in a validation. EarlyStopping ends both after four epochs."""
    whole = tmp_path / "whole"
    resumed = tmp_path / "resumed"
    assert train("keras", whole).returncode == 0
    starts: list[Completed] = []
    for fault in ('[0, 3, "SIGUSR1"]', '[0, 13, "SIGTERM"]', '[0, 20, "SIGTERM in validation"]'):
        starts.append(
            train(
                "keras",
                resumed,
                "--sleep=0.4",
                f"--faults=[{'null, ' * len(starts)}{fault}]",
            )
        )
    assert saved_position(resumed / "checkpoints") == {"epoch": 1, "step": 10}
    starts += [train("keras", resumed), train("keras", resumed)]
    assert [start.returncode for start in starts] == [75, 75, 75, 0, 0], starts[-1].stderr
    assert {start.stdout.count("flushed") for start in starts} == {1}

    assert told(resumed, "done") == list(range(1, 41))
    for what in ("weights", "history", "epochs"):
        assert told(resumed, what) == told(whole, what) * 2

    said = [start.stderr for start in starts]
    folder = resumed / "checkpoints"
    assert "resumes" not in said[0]
    assert "because of SIGTERM: exit status 75 asks to start the program again" in said[1]
    assert said[3].count(f"training resumes from {folder}/ckpt-3, saved at step 10 of epoch 2") == 1
    assert f"nothing is left to train: {folder}/ckpt-4 was saved after epoch 8" in said[4]


def test_ranks_that_find_different_checkpoints_say_so(tmp_path: Path) -> None:
    """This happens if the nodes do not share the folder."""
    for rank, names in enumerate((["ckpt-4.index", "ckpt-3.index"], [])):
        (tmp_path / str(rank) / "checkpoints").mkdir(parents=True)
        for name in names:
            (tmp_path / str(rank) / "checkpoints" / name).touch()
    done = captured(
        in_step(
            "-n2", "bash", "-c", f'exec "$@" {tmp_path}/$SLURM_PROCID', "bash", *PROGRAM, "loop"
        ),
        status=1,
    )
    assert "ResumeError: the ranks find different checkpoints in" in done.stderr
    assert re.search(r": worker 0 \(.*\): \[4, 3\]; worker 1 \(.*\): none", done.stderr)


def test_a_planned_preemption_finds_something_to_save(tmp_path: Path) -> None:
    """The preemption comes after the first step, however long the start takes."""
    done = captured(
        in_step(
            "--requeue --preempt-after 0",
            *PROGRAM,
            "loop",
            str(tmp_path),
            "--epochs=1",
            "--sleep=0.3",
        ),
        status=0,
    )
    assert told(tmp_path, "done") == list(range(1, 11))
    assert "restart 1 of at most 5: the step was preempted" in done.stderr
    assert "training resumes from" in done.stderr
