"""Steps that are partitioned among workers give what one process gives, with its random numbers.

STEPS_SEED is the first seed of the random steps that `make nightly` tries; by default, it is a new
one each day.

`random_steps` makes steps of the operations that people use at random, with numbers of 64 bits, and
so finds what no one has thought of. A fixed seed is tried in `make test`. Programs as users write
them are compared in test_fit.py.

All workers must end with the very same results, bit for bit: what they have is not compared with a
tolerance, because they would drift apart.
"""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path

import pytest
from folders import quiet_helper
from keras_marks import KERAS_3
from keras_outcomes import Outcomes, difference, outcomes
from told_by_workers import lines_told, run

pytestmark = KERAS_3

STEPS = quiet_helper("random_steps.py")
ROUNDING = 1e-6  # of numbers of 64 bits
TODAY = int(os.environ.get("STEPS_SEED", time.time() // 86_400 * 1_000))


def wrong(expected: Outcomes, found: Outcomes) -> dict[str, float]:
    """Returns by how much results differ from one process, if it is by more than rounding."""
    far = {}
    for name, one in expected.items():
        other = found[name]
        assert "error" not in one, name
        what = {key: one[key] for key in ("history", "weights")}
        distance = difference(what, {key: other.get(key, []) for key in what})
        if distance > ROUNDING:
            far[f"{name}: {', '.join(one['used'])} {other.get('error', '')}"] = distance
    return far


@pytest.mark.parametrize(
    ("workers", "first", "count"),
    [
        (2, 1, 6),
        pytest.param(2, TODAY, 100, marks=pytest.mark.nightly),
        pytest.param(3, TODAY + 100, 50, marks=pytest.mark.nightly),
    ],
)
def test_random_steps_equal_one_process(
    tmp_path: Path, workers: int, first: int, count: int
) -> None:
    """The operations of a step that differs are named in the assertion.

    How to look at such a step is described in tests/helpers/random_steps.py.
    """
    print(f"STEPS_SEED={first}")
    command = [*STEPS, str(first), str(count)]
    for count in (0, workers):
        run(command, tmp_path, count)
    (alone,) = outcomes(tmp_path, ["alone"])
    of_workers = outcomes(tmp_path, [str(rank) for rank in range(workers)])
    assert wrong(alone, of_workers[0]) == {}
    assert all(found == of_workers[0] for found in of_workers)


# Strings cannot be sent, so each worker has to call the step itself.
STRINGS = """
import os, keras, numpy as np, tensorflow as tf, slurm_resolver as sr
strategy = tf.distribute.get_strategy()
if "SLURM_STEP_ID" in os.environ:
    strategy = sr.MultiWorkerMirroredStrategy()
class Model(keras.Model):
    def train_step(self, data):
        text = tf.py_function(lambda _: tf.constant("abc"), [data[0]], tf.string)
        return {**super().train_step(data), "length": tf.strings.length(text)}
with strategy.scope():
    keras.utils.set_random_seed(3)
    inputs = keras.Input((4,))
    model = Model(inputs, keras.layers.Dense(1)(inputs))
    model.compile("sgd", "mse")
x = np.arange(44.0).reshape(11, 4) / 44
history = model.fit(x, x[:, :1], batch_size=4, epochs=2, verbose=0).history
print("told", {name: [round(float(one), 5) for one in values] for name, values in history.items()})
"""


def test_a_step_that_has_no_plan_is_computed_whole_and_says_why(tmp_path: Path) -> None:
    command = [sys.executable, "-W", "ignore", "-c", STRINGS]
    alone, workers = (run(command, tmp_path, count) for count in (0, 2))
    assert lines_told(workers) == lines_told(alone) * 2
    assert "cannot be split: EagerPyFunc returns strings" in workers.stderr
