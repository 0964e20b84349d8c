"""This package's resolver replaces TensorFlow's in unmodified programs."""

from __future__ import annotations

import shlex
import sys

import pytest
from folders import quiet_helper
from local_run import COMMAND, captured
from slurm_cluster import SlurmCluster

INSTALLED = """
import sys
from tensorflow.python.distribute.cluster_resolver.slurm_cluster_resolver import (
    SlurmClusterResolver as theirs,
)
import tensorflow as tf
import slurm_resolver as sr

for _ in range(2):
    sr.install()
ours = sr.SlurmClusterResolver
from tensorflow.python.distribute.cluster_resolver.slurm_cluster_resolver import (
    SlurmClusterResolver as later,
)
v1, v2 = (getattr(tf.compat, v).distribute.cluster_resolver for v in ("v1", "v2"))
names = [tf.distribute.cluster_resolver, v1, v2]
assert later is ours and all(name.SlurmClusterResolver is ours for name in names)
assert theirs is not ours and isinstance(ours(), theirs)
others = tf.distribute.cluster_resolver.SimpleClusterResolver(tf.train.ClusterSpec({}))
assert not isinstance(others, theirs)
print("right")
"""


def test_installed_it_is_tensorflows_under_all_of_its_names() -> None:
    done = captured(
        [sys.executable, "-W", "ignore", "-c", INSTALLED],
        env={
            "PATH": "/usr/bin:/bin",
            "CUDA_VISIBLE_DEVICES": "",
            "TF_CPP_MIN_LOG_LEVEL": "2",
        },
    )
    assert done.stdout == "right\n", done.stderr[-2000:]


@pytest.mark.newest
def test_from_outside_on_slurm(real_slurm: SlurmCluster) -> None:
    """TensorFlow's resolver would treat the ranks of this cyclic step as block."""
    command = [*COMMAND, "exec", "--replace-resolver", "--"]
    command += quiet_helper("theirs_by_name.py")
    done = real_slurm.run(
        f"srun -w n9,n10 -N2 -n4 -m cyclic {shlex.join(command)}",
        env={"TF_CPP_MIN_LOG_LEVEL": "2"},
        timeout=240,
    )
    resolved = [
        line.split()[1:] for line in done.stdout.splitlines() if line.startswith("resolved")
    ]
    runs_on = {int(index): node for index, node, *_ in resolved}
    assert sorted(runs_on) == list(range(4))
    for _, _, *hosts in resolved:
        assert hosts == [runs_on[index] for index in range(4)]
