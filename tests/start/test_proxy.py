"""gRPC connects to the tasks without a proxy; what it really does is tried with TensorFlow."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest
from kinds import Texts
from local_run import in_step
from task_variables import ONE_NODE

import slurm_resolver as sr
from slurm_resolver.start import proxy


@pytest.mark.parametrize(
    ("given", "direct"),
    [
        ({"no_proxy": "a"}, None),
        ({"http_proxy": ""}, None),
        ({"http_proxy": "p"}, "fd77::9"),
        ({"grpc_proxy": "p", "no_proxy": "a, fd77::9"}, "a,fd77::9"),
        ({"https_proxy": "p", "no_proxy": "a", "no_grpc_proxy": "b"}, "b,fd77::9"),
        ({"http_proxy": "p", "no_proxy": "a", "no_grpc_proxy": ""}, "fd77::9"),
    ],
)
def test_what_is_added_to_the_environment(given: Texts, direct: str | None) -> None:
    environ = {**given}
    cluster = sr.resolve(environ=ONE_NODE, node_address={"n9": "fd77::9"})
    for _ in range(2):
        proxy.connect_directly(cluster, environ)
        assert environ == ({**given, "no_grpc_proxy": direct} if direct else given)


PROGRAM = """
import os, sys
import slurm_resolver, tensorflow as tf
resolver = slurm_resolver.SlurmClusterResolver()
strategy = tf.distribute.MultiWorkerMirroredStrategy(resolver)
print(strategy.num_replicas_in_sync, os.environ["http_proxy"])
"""


@pytest.mark.tensorflow
def test_tensorflow_starts_with_a_proxy_that_does_not_answer() -> None:
    """The address is one of those that are reserved for documentation."""
    proxy_of = {"http_proxy": "http://192.0.2.1:3128", "no_proxy": "example.org"}
    done = subprocess.run(
        in_step("-n 2 --no-label", sys.executable, "-c", PROGRAM),
        env={**os.environ, **proxy_of},
        stdout=subprocess.PIPE,
        text=True,
        timeout=120,
        check=True,
    )
    assert done.stdout.splitlines() == ["2 http://192.0.2.1:3128"] * 2
