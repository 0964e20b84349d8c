"""How published programs use a resolver: copies, an evaluator, JAX."""

from __future__ import annotations

import copy
import os
import pickle
import sys
from pathlib import Path
from typing import Any

import pytest
from local_run import captured, in_step

from slurm_resolver import SlurmClusterResolver


@pytest.mark.parametrize(
    "copied", [lambda resolver: pickle.loads(pickle.dumps(resolver)), copy.deepcopy]
)
def test_copies_are_alike(slurm: Any, copied: Any) -> None:
    slurm(
        3,
        "2,1,2",
        5,
        CUDA_VISIBLE_DEVICES="4,5",
        SLURM_JOB_ID="42",
        SLURM_STEP_ID="0",
    )
    resolver = SlurmClusterResolver({"ps": 1, "worker": -1})
    other = copied(resolver)
    assert other.cluster_spec() == resolver.cluster_spec()
    assert other.cluster == resolver.cluster
    assert (other.master(), other.gpus) == (resolver.master(), resolver.gpus)


# The first rank never waits for the workers, which meet there.
EVALUATOR = """
import glob, time
from slurm_resolver import SlurmClusterResolver
from slurm_resolver.start.ready import wait_until_ready
resolver = SlurmClusterResolver({"evaluator": 1, "worker": -1})
if resolver.task_type == "worker":
    wait_until_ready(resolver.cluster, 60, ["worker"])  # as their strategy does
    open(f"met.{resolver.task_id}", "w").close()
while len(glob.glob("met.*")) < 2:
    time.sleep(0.1)
print(resolver.task_type, resolver.task_id)
"""


def test_workers_meet_where_the_evaluator_runs(tmp_path: Path) -> None:
    assert sorted(
        captured(
            in_step("-n 3 --no-label", sys.executable, "-c", EVALUATOR),
            cwd=tmp_path,
            status=0,
        ).stdout.splitlines()
    ) == ["evaluator 0", "worker 0", "worker 1"]


# The error does not need an installed JAX.
JAX = """
import keras
import numpy as np
from slurm_resolver import MultiWorkerMirroredStrategy
keras.backend.backend = lambda: "jax"
with MultiWorkerMirroredStrategy().scope():
    model = keras.Sequential([keras.Input((2,)), keras.layers.Dense(1)])
    model.compile("sgd", "mse")
model.fit(np.ones((4, 2)), np.ones((4, 1)))
"""


def test_a_model_of_jax_is_refused() -> None:
    error = captured([sys.executable, "-c", JAX], status=1).stderr.strip().splitlines()[-1]
    assert error.startswith("slurm_resolver.errors.KerasError: Keras computes with jax")
    assert "srun slurm-resolver exec --env keras-distribution" in error


STRATEGY = "import slurm_resolver as sr, tensorflow as tf\nsr.MultiWorkerMirroredStrategy()\n"
CONNECT = "tf.config.experimental_connect_to_cluster(sr.SlurmClusterResolver()"
OWN_JOB = ", sr.SlurmClusterResolver().task_type, sr.SlurmClusterResolver().task_id"
REFUSED = {
    "a second strategy": (STRATEGY * 2, "this process has a strategy already"),
    "a connection": (
        STRATEGY.replace("sr.M", f"{CONNECT})#"),
        "experimental_connect_to_cluster waits",
    ),
    "one with servers": (STRATEGY.replace("sr.M", f"{CONNECT}{OWN_JOB})#"), "no server listens at"),
}


@pytest.mark.parametrize(("program", "error"), REFUSED.values(), ids=list(REFUSED))
def test_what_would_wait_without_end_is_an_error(program: str, error: str) -> None:
    done = captured(
        in_step("-n 2", sys.executable, "-c", program),
        env={**os.environ, "SLURM_RESOLVER_START_TIMEOUT": "8"},
        status=1,
    )
    assert error in done.stdout + done.stderr
