"""A between-graph program whose workers train on when the chief has ended, in long steps.

The arguments name what each worker does, by index: it sleeps between steps, waits in a step, or
only serves.
"""

from __future__ import annotations

import json
import os
import sys
import time
from pathlib import Path

import numpy as np
import tensorflow as tf

v1 = tf.compat.v1
OUTPUT = Path(os.environ["TASK_OUTPUT"])
STEPS, SECONDS = 2, 50.0  # much longer than exec looks


def wait() -> np.int64:
    time.sleep(SECONDS)
    return np.int64(0)


v1.disable_eager_execution()
config = json.loads(os.environ["TF_CONFIG"])
job, index = config["task"]["type"], config["task"]["index"]
does = sys.argv[1 + index] if job == "worker" else {"ps": "serves", "chief": "ends"}[job]
cluster = tf.train.ClusterSpec(config["cluster"])
server = v1.train.Server(cluster, job, index)
if does == "serves":
    server.join()

own = f"/job:{job}/task:{index}"
with v1.device(v1.train.replica_device_setter(worker_device=own, cluster=cluster)):
    step = v1.assign_add(v1.train.get_or_create_global_step(), 1)
with v1.device(own):
    waits = v1.py_func(wait, [], tf.int64)
filters = v1.ConfigProto(device_filters=["/job:ps", own])
with v1.train.MonitoredTrainingSession(server.target, job == "chief", config=filters) as session:
    session.run(step)
    if job == "chief":  # it ends when the others train
        while session.run(step) < 10**9 and len(list(OUTPUT.glob("*.trains"))) < 2:
            time.sleep(0.1)
    else:
        (OUTPUT / f"{does}.trains").touch()
        for _ in range(STEPS):
            if does == "sleeps":
                wait()
            else:
                session.run(waits)
            session.run(step)
        (OUTPUT / f"{does}.ended").touch()
