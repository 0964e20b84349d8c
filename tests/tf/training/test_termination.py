"""When a training that gets a signal saves."""

from __future__ import annotations

import json
import sys
from pathlib import Path

from folders import helper
from keras_marks import KERAS_3
from local_run import captured, in_step

from slurm_resolver.signals import REQUEUE_STATUS

pytestmark = KERAS_3

PROGRAM = helper("slurm_train.py")


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
    lines = map(json.loads, (tmp_path / "rank.0.jsonl").read_text().splitlines())
    assert [line["done"] for line in lines if "done" in line] == list(range(1, 11))
    assert "restart 1 of at most 5: the step was preempted" in done.stderr
    assert "training resumes from" in done.stderr


WITHOUT_RESOLVER = """\
import sys
import slurm_resolver as sr

config = sr.termination_config()
strategy = sr.MultiWorkerMirroredStrategy()
loop = sr.ResumableLoop(sys.argv[1], strategy, termination=config)
list(loop.epochs(1))
print("leads", loop.leads)
"""


def test_the_ranks_of_the_strategy_save_together_without_its_resolver(tmp_path: Path) -> None:
    program = [sys.executable, "-c", WITHOUT_RESOLVER, str(tmp_path)]
    done = captured(in_step("-n 2", *program), status=0)
    assert sorted(done.stdout.splitlines()) == ["0: leads True", "1: leads False"]


TWO_TRAININGS = """\
import os, signal, sys, time
import tensorflow as tf
import slurm_resolver as sr

for name, steps in (("first", 2), ("second", 60)):
    config = sr.termination_config()
    loop = sr.ResumableLoop(f"{sys.argv[1]}/{name}", termination=config, x=tf.Variable(0.0))
    for _ in loop.epochs(1):
        for step in loop.batches(range(steps)):
            if step == 2:
                os.kill(os.getpid(), signal.SIGUSR1)
            elif step > 2:
                time.sleep(0.5)
"""


def test_the_second_training_of_a_program_saves_on_the_signals_of_its_own_config(
    tmp_path: Path,
) -> None:
    done = captured([sys.executable, "-c", TWO_TRAININGS, str(tmp_path)], REQUEUE_STATUS)
    assert "of epoch 1 because of SIGUSR1: exit status 75" in done.stderr


TRAINED_FIRST = """\
import os, signal, sys, time
import tensorflow as tf
import slurm_resolver as sr

first, _ = [
    sr.ResumableLoop(f"{sys.argv[1]}/{number}", x=tf.Variable(0.0)) for number in range(2)
]
for _ in first.epochs(1):
    for step in first.batches(range(60)):
        if step == 2:
            os.kill(os.getpid(), signal.SIGUSR1)
        elif step > 2:
            time.sleep(0.5)
"""


def test_the_training_that_runs_saves_though_another_was_made_after_it(tmp_path: Path) -> None:
    done = captured([sys.executable, "-c", TRAINED_FIRST, str(tmp_path)], REQUEUE_STATUS)
    assert "training saved at step 0" not in done.stderr
    assert [path.parent.name for path in tmp_path.rglob("*.index")] == ["0"]
