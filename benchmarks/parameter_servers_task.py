"""A task of benchmarks/parameter_servers.py: a worker that trains variables of parameter servers.

Between-graph replication: variables on the parameter servers in turn, by `replica_device_setter`.
In a step every worker reads all of them, and sends each an update that it computed.
"""

from __future__ import annotations

import time
from typing import Callable

from teams import obey

import slurm_resolver as sr
from slurm_resolver.cluster.options import Placement


def prepare(
    port_base: int, servers: int, variables: int, size: int, placement: Placement
) -> Callable[[int], object]:
    """Starts the server; returns what trains so many steps, which in a parameter server is none."""
    import tensorflow as tf

    v1 = tf.compat.v1
    jobs = {"ps": servers, "worker": -1}
    cluster = sr.resolve(jobs, port_base=port_base, placement=placement, worker_order="rank")
    assert cluster.task is not None
    job, index = cluster.task.job, cluster.task.index
    # A worker's own graphs need the parameter servers only: other workers may not be there yet.
    config = v1.ConfigProto(device_filters=["/job:ps", f"/job:worker/task:{index}"])
    spec = tf.train.ClusterSpec(cluster.jobs())
    server = v1.train.Server(spec, job, index, config=None if job == "ps" else config)
    if job == "ps":
        return lambda times: server  # which lives as long as the process

    v1.disable_eager_execution()
    setter = v1.train.replica_device_setter(cluster=spec, worker_device=f"/job:worker/task:{index}")
    with v1.device(setter):
        made = [
            v1.get_variable(f"v{number}", [size // variables // 4], use_resource=True)
            for number in range(variables)
        ]
        train = tf.group(*[one.assign_sub(1e-3 * one.read_value()) for one in made])
        missing = v1.report_uninitialized_variables(made)
    session = v1.Session(server.target, config=config)
    if index == 0:
        session.run(v1.global_variables_initializer())
    while session.run(missing).size:
        time.sleep(0.1)

    def work(times: int) -> None:
        for _ in range(times):
            session.run(train)

    work(1)  # makes the connections
    return work


if __name__ == "__main__":
    obey(prepare)
