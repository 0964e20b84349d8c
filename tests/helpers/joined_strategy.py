"""TensorFlow's way to train with parameter servers, unchanged: ps and workers only `join()`."""

from __future__ import annotations

import sys

import tensorflow as tf

resolver = tf.distribute.cluster_resolver.TFConfigClusterResolver()
if resolver.task_type in ("ps", "worker"):
    server = tf.distribute.Server(
        resolver.cluster_spec(), resolver.task_type, resolver.task_id, protocol="grpc"
    )
    server.join()

strategy = tf.distribute.ParameterServerStrategy(resolver)
coordinator = tf.distribute.coordinator.ClusterCoordinator(strategy)
with strategy.scope():
    steps = tf.Variable(0)


@tf.function  # type: ignore[untyped-decorator]
def step() -> None:
    steps.assign_add(1)


for _ in range(100):
    coordinator.schedule(step)
coordinator.join()
assert steps.numpy() == 100
sys.exit(int(sys.argv[1]))
