"""What a task does with PMI-2 itself: it asks for Slurm's mapping, shares values, or runs MPI.

``mapping``: Slurm's PMI_process_mapping. ``share``: what the tasks give each other, twice, and what
comes of a third time to which rank 1 does not come. ``ready``: by what secret the tasks know each
other when they meet, after they have found the layout by PMI-2. ``mpi``: a program of MPICH, by its
library. What came of it goes to a file of its own in the folder TASK_OUTPUT.
"""

from __future__ import annotations

import ctypes
import json
import os
import socket
import sys
import time
from pathlib import Path
from typing import Any, Dict

from slurm_resolver import resolve
from slurm_resolver.cluster.options import ClusterOptions
from slurm_resolver.cluster.pmi2_layout import find_task
from slurm_resolver.errors import RendezvousError
from slurm_resolver.preflight.ready import wait_until_ready
from slurm_resolver.rendezvous.pmi2 import open_store
from slurm_resolver.rendezvous.pmi2_wire import Pmi2Connection
from slurm_resolver.rendezvous.secret import describe_means
from slurm_resolver.slurm.step import SlurmStep

RANK = int(os.environ["SLURM_PROCID"])
MPI_COMM_WORLD = 0x44000000  # of MPICH


def mapping() -> Dict[str, Any]:
    connection = Pmi2Connection(int(os.environ["PMI_FD"]))
    deadline = time.monotonic() + 40
    assert connection.greet(deadline)
    answer = connection.ask("info-getjobattr", "key=PMI_process_mapping;", deadline)
    connection.ask("finalize", "", deadline)
    return {"mapping": answer["value"]}


def share() -> Dict[str, Any]:
    step = SlurmStep.read()
    task = find_task(step, ClusterOptions())
    assert task is not None
    store = open_store(task, 40)
    assert store is not None
    nodes = [f"address/{node}" for node in range(step.require(SlurmStep.num_nodes))]
    own = {f"address/{step.node_id}": socket.gethostname()} if step.local_rank == 0 else {}
    told: Dict[str, Any] = {"addresses": list(store.share(own, nodes, 40).values())}
    long = "".join(chr(33 + number % 90) for number in range(5000))
    told["secret"] = store.share({"secret": long} if RANK == 0 else {}, ["secret"], 40)["secret"]
    assert told["secret"] == long
    if RANK != 1:
        try:
            store.share({}, [], 0.5)
        except RendezvousError as error:
            told["error"] = str(error)
    return told


def ready() -> Dict[str, Any]:
    cluster = resolve()
    wait_until_ready(cluster, 60)
    return {"source": cluster.layout_source, "means": describe_means()[0]}


def mpi() -> Dict[str, Any]:
    library = ctypes.CDLL("libmpich.so.12", mode=ctypes.RTLD_GLOBAL)
    rank, size = ctypes.c_int(), ctypes.c_int()
    if library.MPI_Init(None, None):
        return {}
    library.MPI_Comm_rank(MPI_COMM_WORLD, ctypes.byref(rank))
    library.MPI_Comm_size(MPI_COMM_WORLD, ctypes.byref(size))
    library.MPI_Barrier(MPI_COMM_WORLD)
    library.MPI_Finalize()
    return {"mpi": [rank.value, size.value]}


def main() -> None:
    told = {"mapping": mapping, "share": share, "ready": ready, "mpi": mpi}[sys.argv[1]]()
    told.update(rank=RANK, host=socket.gethostname())
    ids = [os.environ[f"SLURM_{name}"] for name in ("JOB_ID", "STEP_ID", "PROCID")]
    Path(os.environ["TASK_OUTPUT"], ".".join(ids)).write_text(json.dumps(told))


if __name__ == "__main__":
    main()
