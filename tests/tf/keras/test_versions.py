"""The version of Keras 3 that `nox` tests; two workers refuse one that trains wrongly.

For `nox`, which sets KERAS_VERSION to the version under test, such as 3.10, or to "installed".
test_fit.py compares the results of two workers with those of one process on other versions.
"""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from keras_marks import VERSION
from told_by_workers import told

from slurm_resolver.start.keras_version import keras_problem

GIVEN = os.environ.get("KERAS_VERSION", "")
pytestmark = pytest.mark.skipif(not GIVEN, reason="nox --session keras-versions")


def test_the_first_keras_on_the_path_has_this_version() -> None:
    assert GIVEN == "installed" or VERSION.startswith(f"{GIVEN}.")


# With one worker, an old Keras trains as it would without a strategy.
OLD = """
import keras, numpy as np, slurm_resolver as sr
strategy = sr.MultiWorkerMirroredStrategy()
with strategy.scope():
    model = keras.Sequential([keras.Input((2,)), keras.layers.Dense(1)])
    model.compile("sgd", "mse")
try:
    print("told", sorted(model.fit(np.ones((8, 2)), np.ones((8, 1)), verbose=0).history))
except sr.KerasError as error:
    print("told", error)
"""


@pytest.mark.skipif(not keras_problem(VERSION), reason="this version trains correctly")
def test_two_workers_refuse_an_old_version_that_one_trains_with(tmp_path: Path) -> None:
    assert told(OLD, tmp_path, 1) == ["told ['loss']"]
    refused = told(OLD, tmp_path, 2)
    assert len(refused) == 2
    for line in refused:
        assert line.startswith(f"told Keras {VERSION} trains incorrectly")
