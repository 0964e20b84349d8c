"""Keras 3 trains on several nodes of the real Slurm as in one process."""

from __future__ import annotations

import json
import shlex
import subprocess
import sys
from pathlib import Path
from typing import Any, Dict, List, Tuple

import pytest
from folders import HELPERS
from outcomes import flat
from slurm_cluster import SlurmCluster

keras_version = pytest.importorskip("keras").__version__
pytestmark = [
    pytest.mark.slurm,
    pytest.mark.tensorflow,
    pytest.mark.newest,  # what Keras does depends on no Slurm
    pytest.mark.skipif(keras_version.startswith("2."), reason="this TensorFlow has Keras 2"),
]

PROGRAM = [sys.executable, "-W", "ignore", str(HELPERS / "keras_cases.py")]
SECONDS = 600
Outcomes = Dict[str, Dict[str, Any]]

# By workers, the step that starts them, always on two nodes.
STEPS = {2: "-w n9,n10 -N2 -n2", 3: "-w n9,n10 -N2 -n3"}

# What two workers do, three do where it matters how the rows are shared.
CASES: Dict[int, List[str]] = {
    2: [],  # all
    3: [
        "datasets",
        "uneven_end",
        "arrays_with_an_uneven_end",
        "validation_data",
        "steps_per_execution_with_a_rest",
        "py_dataset",
        "parts_of_unequal_size",
        "batch_normalization",
        "early_stopping",
    ],
}

# Cases that are not equal to one process to five digits, and by how much they may differ.
TOLERANCES = {"mixed_precision": 2e-2, "parts_of_unequal_size": 0.3}

# What fails under TensorFlow's own class.
WITHOUT_US = "Attempt to convert a value (PerReplica"


@pytest.fixture(scope="module")
def alone(tmp_path_factory: pytest.TempPathFactory) -> Outcomes:
    folder = tmp_path_factory.mktemp("alone")
    subprocess.run(
        [*PROGRAM, "--alone"],
        env={"PATH": "/usr/bin:/bin", "TASK_OUTPUT": str(folder), "CUDA_VISIBLE_DEVICES": ""},
        check=True,
        timeout=SECONDS,
    )
    return outcomes(folder, ["alone"])[0]


@pytest.fixture(scope="module", params=STEPS)
def workers(
    request: pytest.FixtureRequest,
    real_slurm: SlurmCluster,
    tmp_path_factory: pytest.TempPathFactory,
) -> List[Outcomes]:
    """What came of all cases, by worker."""
    count: int = request.param
    return run(real_slurm, count, tmp_path_factory.mktemp(f"workers{count}"), *CASES[count])


def run(slurm: SlurmCluster, count: int, folder: Path, *options: str) -> List[Outcomes]:
    step(slurm, STEPS[count], folder, *options)
    return outcomes(folder, [str(index) for index in range(count)])


def step(slurm: SlurmCluster, where: str, folder: Path, *options: str) -> None:
    command = f"srun --kill-on-bad-exit=1 {where} {shlex.join([*PROGRAM, *options])}"
    done = slurm.run(command, env={"TASK_OUTPUT": str(folder)}, timeout=SECONDS, check=False)
    assert done.returncode == 0, done.stderr[-4000:]


def outcomes(folder: Path, names: List[str]) -> List[Outcomes]:
    return [json.loads((folder / name).read_text()) for name in names]


def differences(one: Dict[str, Any], other: Dict[str, Any]) -> Dict[str, Tuple[float, int]]:
    """By what was compared, the largest difference, and by how many numbers one is longer."""
    assert set(one) == set(other), (one.get("error"), other.get("error"))
    found = {}
    for name in one:
        left, right = flat(one[name]), flat(other[name])
        largest = max((abs(a - b) for a, b in zip(left, right)), default=0.0)
        found[name] = (largest, len(left) - len(right))
    return found


def test_all_ways_of_training_give_what_one_process_gives(
    alone: Outcomes, workers: List[Outcomes]
) -> None:
    assert set(workers[0]) == set(CASES[len(workers)] or alone)
    for name, found in workers[0].items():
        expected = alone[name]
        assert "error" not in expected, (name, expected)
        for what, (largest, longer) in differences(expected, found).items():
            assert longer == 0, (name, what)
            assert largest < TOLERANCES.get(name, 1e-5), (name, what, largest)


def test_one_worker_of_a_parameter_server_gives_what_one_process_gives(
    alone: Outcomes, real_slurm: SlurmCluster, tmp_path: Path
) -> None:
    """One worker takes the steps in their order, whole batches at a time."""
    step(real_slurm, "-w n8,n9,n10 -N3 -n3", tmp_path, "--ps")
    (chief,) = outcomes(tmp_path, ["chief"])
    for name, expected in alone.items():
        for what, (largest, longer) in differences(expected, chief[name]).items():
            assert longer == 0, (name, what)
            assert largest < 1e-5, (name, what, largest)


def test_all_workers_end_with_the_very_same(workers: List[Outcomes]) -> None:
    for other in workers[1:]:
        assert other == workers[0]


# What a loop of one's own asks of the strategy; TensorFlow reduces one value at a time.
OWN_LOOP = """
import tensorflow as tf, slurm_resolver as sr
strategy = sr.MultiWorkerMirroredStrategy()
index = tf.cast(strategy.cluster_resolver.task_id, tf.float32)
own = strategy.run(lambda: index + 1)
sums = [strategy.reduce(how, own, axis=axis).numpy() for how, axis in [("SUM", None), ("MEAN", 0)]]
try:
    strategy.reduce("SUM", {"loss": own}, axis=None)
except ValueError:
    print("told", *map(float, sums))
"""


def test_a_loop_of_ones_own_gets_what_tensorflow_gives(real_slurm: SlurmCluster) -> None:
    command = shlex.join([sys.executable, "-W", "ignore", "-c", OWN_LOOP])
    done = real_slurm.run(f"srun {STEPS[2]} {command}", timeout=SECONDS)
    assert [line for line in done.stdout.splitlines() if "told" in line] == ["told 3.0 1.5"] * 2


# What is left between two steps cannot be put into a graph, as this does with a step.
ONE_STEP = """
import keras, tensorflow as tf, slurm_resolver as sr
strategy = sr.MultiWorkerMirroredStrategy()
data = tf.data.Dataset.from_tensor_slices((tf.ones([8, 2]), tf.ones([8, 1]))).repeat().batch(4)
with strategy.scope():
    model = keras.Sequential([keras.Input((2,)), keras.layers.Dense(1)])
    model.compile("sgd", "mse", metrics=["mae", "mape"])
model.fit(data, steps_per_epoch=2, validation_data=data, validation_steps=2, verbose=0)
iterator = iter(strategy.experimental_distribute_dataset(data))
for function in (model.train_function, model.test_function):
    graph = tf.function(function, autograph=False).get_concrete_function(iterator).graph
    called = [node for part in graph.as_graph_def().library.function for node in part.node_def]
    print("told", sum(node.op.startswith("CollectiveReduce") for node in called))
"""


def test_a_step_is_one_graph_with_one_collective_for_all_metrics(real_slurm: SlurmCluster) -> None:
    command = shlex.join([sys.executable, "-W", "ignore", "-c", ONE_STEP])
    done = real_slurm.run(f"srun {STEPS[2]} {command}", timeout=SECONDS)
    told = sorted(line for line in done.stdout.splitlines() if "told" in line)
    assert told == ["told 1"] * 2 + ["told 2"] * 2  # a test step; a train step with its gradients


def test_under_tensorflows_own_class_none_of_it_trains(
    real_slurm: SlurmCluster, tmp_path: Path
) -> None:
    """Where this fails, Keras or TensorFlow has mended it, and the class here may go."""
    names = ["datasets", "arrays", "steps_per_execution"]
    for worker in run(real_slurm, 2, tmp_path, "--tensorflow", *names):
        for name in names:
            assert WITHOUT_US in worker[name]["error"]
