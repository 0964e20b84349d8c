"""How published programs use TensorFlow's resolver, each pattern with this one in its place."""

from __future__ import annotations

import copy
import os
import pickle
import shlex
import sys
from typing import Any, Callable, Dict

import pytest
from slurm_cluster import SlurmCluster

tf = pytest.importorskip("tensorflow", reason="TensorFlow is not installed")

from slurm_resolver import SlurmClusterResolver  # noqa: E402

pytestmark = pytest.mark.tensorflow


COPIES: Dict[str, Callable[[Any], Any]] = {
    "pickle": lambda resolver: pickle.loads(pickle.dumps(resolver)),
    "deepcopy": copy.deepcopy,
    "copy": copy.copy,
}


@pytest.mark.parametrize("how", COPIES)
def test_copies_are_alike(slurm: Any, how: str) -> None:
    slurm(3, "2,1,2", 5, CUDA_VISIBLE_DEVICES="4,5", SLURM_JOB_ID="42", SLURM_STEP_ID="0")
    resolver = SlurmClusterResolver({"ps": 1, "worker": -1})
    before = dict(os.environ)
    other = COPIES[how](resolver)
    assert dict(os.environ) == before
    assert type(other) is SlurmClusterResolver
    assert other.cluster_spec() == resolver.cluster_spec()
    assert other.cluster == resolver.cluster
    assert (other.get_task_info(), other.master()) == (resolver.get_task_info(), resolver.master())
    assert (other.gpus, other.num_accelerators()) == (resolver.gpus, resolver.num_accelerators())
    assert other._task_configuration == resolver._task_configuration
    other.task_id = 7
    assert resolver.task_id != 7


DTENSOR = """
import tensorflow as tf
from tensorflow.experimental import dtensor

dtensor.initialize_accelerator_system("CPU")
mesh = dtensor.create_distributed_mesh([("batch", 2)], device_type="CPU")
ones = dtensor.call_with_layout(tf.ones, dtensor.Layout(["batch"], mesh), shape=(8,))
print(dtensor.client_id(), len(dtensor.unpack(ones)[0]), int(tf.reduce_sum(ones)))
"""


@pytest.mark.nightly
@pytest.mark.slurm
@pytest.mark.newest  # DTensor asks for no Slurm
def test_programs_of_dtensor(real_slurm: SlurmCluster) -> None:
    program = shlex.join([sys.executable, "-c", DTENSOR])
    command = f"{sys.executable} -m slurm_resolver exec --env dtensor --wait 100 -- {program}"
    done = real_slurm.run(
        f"srun -w n8,n9 -N2 -n2 {command}", env={"TF_CPP_MIN_LOG_LEVEL": "2"}, timeout=200
    )
    assert sorted(done.stdout.splitlines()) == ["0 4 8", "1 4 8"]
