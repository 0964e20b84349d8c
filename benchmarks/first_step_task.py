"""A task of benchmarks/first_step.py: makes a strategy, trains one step, and prints the time."""

from __future__ import annotations

import json
import os
import sys
import time


def main() -> None:
    """Creates the strategy in the way that the argument names, and trains."""
    way = sys.argv[1]
    if way == "by-hand":
        cluster = {"worker": ["n1:23456", "n2:23456"]}
        task = {"type": "worker", "index": int(os.environ["SLURM_PROCID"])}
        os.environ["TF_CONFIG"] = json.dumps({"cluster": cluster, "task": task})
    import tensorflow as tf

    resolver = None  # with TF_CONFIG
    if way in ("resolver", "resolver-ready"):
        from slurm_resolver import SlurmClusterResolver

        resolver = SlurmClusterResolver()
        if way == "resolver-ready":
            resolver.wait_until_ready()
    elif way == "tensorflow":
        resolver = tf.distribute.cluster_resolver.SlurmClusterResolver(
            gpus_per_node=1, gpus_per_task=1, auto_set_gpu=False
        )
        os.environ["CUDA_VISIBLE_DEVICES"] = ""
    strategy = tf.distribute.MultiWorkerMirroredStrategy(resolver)
    with strategy.scope():
        weights = tf.Variable(tf.ones([100, 10]))

    @tf.function  # type: ignore[untyped-decorator]
    def step() -> None:
        def replica() -> None:
            with tf.GradientTape() as tape:
                loss = tf.reduce_mean(tf.ones([32, 100]) @ weights)
            gradient = tape.gradient(loss, weights)
            total = tf.distribute.get_replica_context().all_reduce("SUM", gradient)
            weights.assign_sub(0.1 * total)

        strategy.run(replica)

    step()
    trained = float(tf.reduce_sum(weights))
    assert trained < 999, trained
    print(time.time(), flush=True)


if __name__ == "__main__":
    main()
