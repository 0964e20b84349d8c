"""A task of benchmarks/parameter_servers.py: a worker, or a parameter server.

The training is between-graph replication: `replica_device_setter` assigns the variables to the
parameter servers in turn. In a step, every worker reads all variables, computes an update of each,
and sends it to the variable's server.
"""

from __future__ import annotations

import time
from typing import Callable

from variants import serve_variants

import slurm_resolver as sr
from slurm_resolver.cluster.options import Placement


def prepare(
    port_base: int, servers: int, variables: int, size: int, placement: Placement
) -> Callable[[int], object]:
    """Starts the task's server; returns a function that trains a number of steps.

    In a parameter server, that function does nothing.
    """
    import tensorflow as tf

    v1 = tf.compat.v1
    jobs = {"ps": servers, "worker": -1}
    cluster = sr.resolve(jobs, port_base=port_base, placement=placement, worker_order="rank")
    assert cluster.task is not None
    job, index = cluster.task.job, cluster.task.index
    # A worker's graphs use the parameter servers only. Other workers may not have started yet.
    config = v1.ConfigProto(device_filters=["/job:ps", f"/job:worker/task:{index}"])
    spec = tf.train.ClusterSpec(cluster.jobs())
    server = v1.train.Server(spec, job, index, config=None if job == "ps" else config)
    if job == "ps":
        return lambda times: server  # the closure keeps the server alive

    v1.disable_eager_execution()
    setter = v1.train.replica_device_setter(cluster=spec, worker_device=f"/job:worker/task:{index}")
    with v1.device(setter):
        weights = [
            v1.get_variable(f"v{number}", [size // variables // 4], use_resource=True)
            for number in range(variables)
        ]
        train = tf.group(*[one.assign_sub(1e-3 * one.read_value()) for one in weights])
        uninitialized = v1.report_uninitialized_variables(weights)
    session = v1.Session(server.target, config=config)
    if index == 0:
        session.run(v1.global_variables_initializer())
    while session.run(uninitialized).size:
        time.sleep(0.1)

    def run_steps(times: int) -> None:
        for _ in range(times):
            session.run(train)

    run_steps(1)  # opens the connections
    return run_steps


if __name__ == "__main__":
    serve_variants(prepare)
