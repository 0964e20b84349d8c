"""One all-reduce of a chief and so many workers, two devices each, as servers of one process.

Run as ``tensorflow_ring.py WORKERS``; with TF_CPP_VMODULE=ring_alg=2 TensorFlow logs the order in
which its ring visits the devices.
"""

from __future__ import annotations

import os
import socket
import sys

import tensorflow as tf
from tensorflow.python.ops import collective_ops

DEVICES = 2


def main() -> None:
    """Reduces, and leaves without waiting for the servers."""
    workers = int(sys.argv[1])
    listeners = [socket.create_server(("127.0.0.1", 0)) for _ in range(workers + 1)]
    addresses = [f"127.0.0.1:{listener.getsockname()[1]}" for listener in listeners]
    for listener in listeners:
        listener.close()
    spec = {"chief": addresses[:1], "worker": addresses[1:]}
    config = tf.compat.v1.ConfigProto(device_count={"CPU": DEVICES})
    config.experimental.collective_group_leader = "/job:chief/replica:0/task:0"
    config.inter_op_parallelism_threads = 2
    tasks = [(job, index) for job in spec for index in range(len(spec[job]))]
    servers = [
        tf.compat.v1.train.Server(spec, job_name=job, task_index=index, config=config)
        for job, index in tasks
    ]
    size = len(tasks) * DEVICES
    sums = []
    with tf.Graph().as_default():
        for job, index in tasks:
            for number in range(DEVICES):
                with tf.device(f"/job:{job}/task:{index}/device:CPU:{number}"):
                    group, instance = tf.constant(1), tf.constant(1)
                    sums.append(
                        collective_ops.all_reduce_v2(
                            tf.ones([100]), tf.constant(size), group, instance,
                            communication_hint="ring",
                        )
                    )  # fmt: skip
        options = tf.compat.v1.RunOptions()
        options.experimental.collective_graph_key = 1
        with tf.compat.v1.Session(servers[0].target, config=config) as session:
            assert session.run(sums, options=options)[0][0] == size
    sys.stderr.flush()
    os._exit(0)


if __name__ == "__main__":
    main()
