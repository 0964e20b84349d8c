"""A third-party program that creates TensorFlow's resolver and prints its cluster."""

import os

import tensorflow as tf

resolver = tf.distribute.cluster_resolver.SlurmClusterResolver()
assert isinstance(resolver, tf.distribute.cluster_resolver.SlurmClusterResolver)
hosts = [task.partition(":")[0] for task in resolver.cluster_spec().job_tasks("worker")]
print("resolved", resolver.task_id, os.environ["SLURMD_NODENAME"], *hosts)
