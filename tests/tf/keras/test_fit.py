"""Keras 3 gives the same results on several nodes of the real Slurm as in one process.

KERAS_PROGRAMS selects programs of tests/helpers/keras_programs, for example "loss_*".
"""

from __future__ import annotations

import json
import math
import os
import re
import shlex
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from folders import HELPERS
from keras_marks import KERAS_3_ON_SLURM
from kinds import Fields, Strings
from outcomes import flat
from slurm_cluster import SlurmCluster

pytestmark = KERAS_3_ON_SLURM

PROGRAM = [sys.executable, "-W", "ignore", str(HELPERS / "keras_programs")]
SECONDS = 1500
Outcomes = dict[str, Fields]

# The step for each number of workers, always on two nodes.
STEPS = {2: "-w n9,n10 -N2 -n2", 3: "-w n9,n10 -N2 -n3"}

# What ParameterServerStrategy refuses.
REFUSED = {"optimizer_accumulated", "optimizer_ema_overwritten", "step_eagerly"}
# It makes the optimizer's variables before the first step, as Keras does under a strategy. In one
# process Keras makes them in the first step, and what `build` assigns there is lost.
BUILT_BEFORE = {"optimizer_assigning_in_build", "optimizer_schedule_free"}
# Its logs of a batch, and metrics that a callback reads, are those of an earlier step.
LATE = {
    *("metric_auc", "metric_weighted_auc", "metric_r2", "metric_own_vector"),
    *("metric_weighted_own_vector", "callback_reading_metrics"),
}
# Three workers run only the programs whose results depend on how rows are shared.
THREE = [
    *("loss_dice", "loss_reduction_*", "loss_function_sum", "loss_masked_*", "loss_added_vector"),
    *("loss_weighted_*_by_weight", "loss_two_outputs", "optimizer_accumulated", "step_own"),
    *("step_gan", "step_five_per_execution", "metric_auc", "metric_own_*", "step_vae"),
    *("loss_added_sum", "loss_activity_of_batch", "step_contrastive"),
    *("data_on_batch", "data_arrays_batches_of_1", "data_shuffled_fit", "guide_synchronized_*"),
]
NAMES = {2: ["*"], 3: THREE}

# What is not known: the workers split the batches if the user vouches for them.
UNKNOWN = ["data_ragged", "data_sparse_inputs", "step_eagerly"]
# With what compares rows, or cannot be put together: every worker computes whole batches.
COMPARING = [
    *("loss_activity_of_batch", "loss_two_outputs", "step_contrastive", "step_decorated_parts"),
    "loss_gradient_clipped",
]
# With steps and losses of their own, which are means and sums: the workers split the batches.
PROVEN = [
    *("loss_added_sum", "loss_gradient_reversed", "loss_reduction_none"),
    *("step_gan", "step_own", "step_vae"),
]


def names(count: int, custom_losses: str = "whole") -> Strings:
    given = os.environ.get("KERAS_PROGRAMS")
    chosen = NAMES[count] if custom_losses == "whole" else [*UNKNOWN, *COMPARING, *PROVEN]
    return given.split() if given else chosen


def listed() -> dict[str, Strings]:
    """Returns each program's tolerance and the reason why it differs by design."""
    done = subprocess.run(
        [*PROGRAM, "--list"], capture_output=True, text=True, check=True, timeout=SECONDS
    )
    rows = [line.split("\t") for line in done.stdout.splitlines()]
    return {name: rest for name, *rest in rows}


@pytest.fixture(scope="module")
def alone(tmp_path_factory: pytest.TempPathFactory) -> Outcomes:
    folder = tmp_path_factory.mktemp("alone")
    subprocess.run(
        [*PROGRAM, "--alone", *names(2)],
        env={
            "PATH": "/usr/bin:/bin",
            "PYTHONPATH": os.environ.get("PYTHONPATH", ""),  # the Keras under test
            "TASK_OUTPUT": str(folder),
            "CUDA_VISIBLE_DEVICES": "",
        },
        check=True,
        timeout=SECONDS,
    )
    return outcomes(folder, ["alone"])[0]


@pytest.fixture(
    scope="module",
    params=[
        (2, "whole"),
        (2, "mean"),
        pytest.param((3, "whole"), marks=pytest.mark.nightly),
        pytest.param((3, "mean"), marks=pytest.mark.nightly),
    ],
    ids="{0[0]} workers, {0[1]}".format,
)
def workers(
    request: pytest.FixtureRequest,
    real_slurm: SlurmCluster,
    tmp_path_factory: pytest.TempPathFactory,
) -> list[Outcomes]:
    """What came of the programs, by worker."""
    how: tuple[int, str] = request.param
    count, custom_losses = how
    folder = tmp_path_factory.mktemp(f"workers{count}")
    step(real_slurm, STEPS[count], folder, f"--custom-losses={custom_losses}", *names(*how))
    return outcomes(folder, [str(index) for index in range(count)])


def step(slurm: SlurmCluster, where: str, folder: Path, *options: str) -> None:
    command = f"srun --kill-on-bad-exit=1 {where} {shlex.join([*PROGRAM, *options])}"
    done = slurm.run(command, env={"TASK_OUTPUT": str(folder)}, timeout=SECONDS, check=False)
    assert done.returncode == 0, done.stderr[-4000:]


def outcomes(folder: Path, files: Strings) -> list[Outcomes]:
    return [json.loads((folder / name).read_text()) for name in files]


def difference(one: Any, other: Any) -> float:
    """Returns the largest difference between two structures' numbers, relative if above 1."""
    left, right = flat(one), flat(other)
    if len(left) != len(right):
        return math.inf
    largest = 0.0
    for a, b in zip(left, right):
        if math.isnan(a) != math.isnan(b):
            return math.inf
        if a != b and not math.isnan(a):
            largest = max(largest, abs(a - b) / max(1.0, abs(a)))
    return largest


def different(found: Outcomes, alone: Outcomes) -> Fields:
    """Returns the results that differ from one process, by the program's name."""
    told: Fields = {}
    for name, (tolerance, by_design) in listed().items():
        if name not in found or (by_design and not found[name]["whole"]):
            continue
        expected, came = alone[name], found[name]
        if "error" in came or "error" in expected:
            told[name] = came.get("error"), expected.get("error")
        else:
            far = {what: difference(expected[what], came.get(what)) for what in expected}
            far.pop("whole", None)
            if max(far.values()) > float(tolerance or 1e-4):
                told[name] = far
    return told


def test_programs_give_what_one_process_gives(alone: Outcomes, workers: list[Outcomes]) -> None:
    assert different(workers[0], alone) == {}


def test_whole_batches_are_computed_only_where_rows_are_compared(
    workers: list[Outcomes], request: pytest.FixtureRequest
) -> None:
    vouched = "mean" in request.node.callspec.id
    expected = set(COMPARING) if vouched else {*COMPARING, *UNKNOWN}
    for worker in workers:
        whole = {name for name, came in worker.items() if came["whole"]}
        assert whole == expected & worker.keys()


@pytest.mark.nightly
def test_one_worker_of_a_parameter_server_gives_what_one_process_gives(
    alone: Outcomes, real_slurm: SlurmCluster, tmp_path: Path
) -> None:
    """A single worker computes the steps in order, with whole batches."""
    step(real_slurm, "-w n8,n9,n10 -N3 -n3", tmp_path, "--ps", *names(2))
    (chief,) = outcomes(tmp_path, ["chief"])
    chief.pop("loop_with_metrics", None)  # a coordinator must schedule it
    errors = {name for name, came in chief.items() if "error" in came}
    assert errors == chief.keys() & REFUSED
    assert all(re.match("(Fit|Keras)Error: ", chief.pop(name)["error"]) for name in errors)
    for name in LATE & chief.keys():
        for what in {"batches", "read"} & alone[name].keys():
            chief[name][what] = alone[name][what]
    assert different(chief, alone).keys() <= BUILT_BEFORE


def test_all_workers_end_with_the_very_same(workers: list[Outcomes]) -> None:
    """This includes programs that differ from one process because rows draw random numbers."""
    for other in workers[1:]:
        assert [name for name in other if other[name] != workers[0][name]] == []


# Without a seed, the strategy makes all workers shuffle alike, but draw different masks.
UNSEEDED = """
import keras, numpy as np, tensorflow as tf, slurm_resolver as sr
strategy = sr.MultiWorkerMirroredStrategy()
order = [int(row) for row in tf.data.Dataset.range(50).shuffle(50)] + list(np.random.permutation(9))
class Masks(keras.Model):
    def train_step(self, data):
        return {"masks": tf.linalg.matvec(self(data[0], training=True), tf.range(40.0))}
with strategy.scope():
    inputs = keras.Input((40,))
    model = Masks(inputs, keras.layers.Dropout(0.5)(inputs))
    model.compile()
masks = model.train_on_batch(np.ones((2, 40)), np.ones(2), return_dict=True)["masks"]
print("told", hash(tuple(map(int, order))), len(set(map(float, masks))))
"""


def test_all_workers_shuffle_alike_without_a_seed(real_slurm: SlurmCluster) -> None:
    one, other = told(real_slurm, UNSEEDED)
    assert one == other
    assert one.endswith(" 2"), "both rows have the same mask"


# One worker makes calls alone, and the others continue.
READING = """
import keras, numpy as np, slurm_resolver as sr
strategy = sr.MultiWorkerMirroredStrategy()
with strategy.scope():
    model = keras.Sequential([keras.Input((4,)), keras.layers.BatchNormalization()])
    model.compile("sgd", "mse", metrics=["mae", keras.metrics.AUC(name="auc")])
x = np.ones((8, 4))
model.fit(x, x, verbose=0)
if strategy.cluster_resolver.task_id == 0:
    model.get_weights(), model.summary(print_fn=str), model.save("/dev/shm/{}.keras")
    results = {{name: float(value) for name, value in model.get_metrics_result().items()}}
    float(model.optimizer.learning_rate), int(model.optimizer.iterations), model(x[:2]).numpy()
print("told", sorted(model.fit(x, x, verbose=0).history))
if strategy.cluster_resolver.task_id == 0:
    import os
    os.remove("/dev/shm/{}.keras")
"""


def test_reading_and_saving_need_no_other_worker(real_slurm: SlurmCluster) -> None:
    script = READING.format(*[f"reading{os.getpid()}"] * 2)
    assert told(real_slurm, script) == ["told ['auc', 'loss', 'mae']"] * 2


def told(slurm: SlurmCluster, script: str) -> Strings:
    command = shlex.join([sys.executable, "-W", "ignore", "-c", script])
    done = slurm.run(f"srun {STEPS[2]} {command}", timeout=SECONDS)
    return sorted(line for line in done.stdout.splitlines() if line.startswith("told"))
