"""Each version of Keras 3 gives the same results on two workers and one, or both workers refuse it.

For `nox`, which sets KERAS_VERSION to the version under test, such as 3.10, or to "installed".
"""

from __future__ import annotations

import importlib.util
import json
import os
import sys
from pathlib import Path

import pytest
from folders import quiet_helper
from keras_outcomes import flat
from kinds import Fields, Strings
from local_run import captured, in_step

from slurm_resolver.start.keras_version import keras_problem

GIVEN = os.environ.get("KERAS_VERSION", "")
pytestmark = pytest.mark.skipif(not GIVEN, reason="nox --session keras-versions")


def keras_version() -> str:
    """Returns the version of the first Keras on the path, which may be keras-nightly."""
    spec = importlib.util.find_spec("keras")
    assert spec is not None
    assert spec.origin is not None
    return (
        Path(spec.origin)
        .parent.joinpath("src", "version.py")
        .read_text()
        .partition('__version__ = "')[2]
        .partition('"')[0]
    )


VERSION = keras_version() if GIVEN else "3.10.0"

PROGRAM = quiet_helper("keras_programs")
WORKERS = in_step("-n 2", *PROGRAM, "--custom-losses=mean")
OLDER = bool(keras_problem(VERSION))
NAMES = [
    "loss_dice",
    "loss_masked_sequences",
    "loss_function_sum",
    "loss_two_outputs",
    "optimizer_accumulated",
    "optimizer_loss_scale",
    "step_own",
    "step_gan",
    "step_five_per_execution",
    "data_arrays_weighted_validation_split",
    "data_py_dataset",
    "data_dict_inputs",
    "data_predictions",
    "metric_auc",
    "metric_own_vector",
    "guide_saved_and_loaded",
    "guide_unbuilt_sequential",
]


def run(command: Strings, folder: Path, name: str) -> dict[str, Fields]:
    folder.mkdir()
    captured(
        [*command, *NAMES],
        status=0,
        env={
            **os.environ,
            "TASK_OUTPUT": str(folder),
            "CUDA_VISIBLE_DEVICES": "",
        },
    )
    found: dict[str, Fields] = json.loads((folder / name).read_text())
    return found


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


@pytest.mark.skipif(not OLDER, reason="this version trains correctly")
def test_two_workers_refuse_an_old_version_that_one_trains_with() -> None:
    found = []
    for count in (1, 2):
        done = captured(
            in_step(f"-n {count}", sys.executable, "-W", "ignore", "-c", OLD),
            check=True,
        )
        found += [line for line in done.stdout.splitlines() if "told" in line]
    assert found[0].endswith("told ['loss']")
    assert len(found) == 3
    assert all(f"told Keras {VERSION} trains incorrectly" in line for line in found[1:])


@pytest.mark.skipif(OLDER, reason="this version trains wrongly")
def test_two_workers_give_what_one_process_gives(tmp_path: Path) -> None:
    assert GIVEN == "installed" or VERSION.startswith(f"{GIVEN}.")
    alone = run([*PROGRAM, "--alone"], tmp_path / "alone", "alone")
    workers = run(WORKERS, tmp_path / "workers", "0")
    for name, expected in alone.items():
        del expected["whole"]
        for what, values in expected.items():
            assert flat(workers[name].get(what, [workers[name].get("error")])) == pytest.approx(
                flat(values), rel=1e-4, abs=1e-4
            ), (name, what)
