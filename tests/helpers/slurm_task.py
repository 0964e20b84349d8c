"""Records where each task of a test step runs, and which cluster it resolves.

Each task writes a separate file in the folder TASK_OUTPUT, because srun forwards output in pieces
of 1,024 bytes and mixes the lines of several tasks.

The options ``--jobs JSON``, ``--layout HOW`` and ``--node-address HOW`` go to `resolve`. ``--unset
NAME`` hides a variable. With ``--meet DIRECTORY TOTAL``, the tasks prove their addresses: once
TOTAL tasks (of all steps that share the directory) listen at their addresses, each task asks every
address of its step for the job id and the rank.
"""

from __future__ import annotations

import argparse
import json
import os
import socket
import threading
import time
from pathlib import Path
from typing import Any

from kinds import Fields, Strings

import slurm_resolver as sr
from slurm_resolver.cluster.options import LayoutChoice
from slurm_resolver.start.transport import task_devices


def account(jobs: Any, layout: LayoutChoice, node_address: str | None) -> Fields:
    line: Fields = {
        # from the kernel, not from Slurm: every test node has its own hostname
        "host": socket.gethostname(),
        "rank": int(os.environ["SLURM_PROCID"]),
        "cluster": None,
        "error": None,
    }
    try:
        cluster = sr.resolve(
            jobs,
            layout=layout,
            node_address=node_address,
        )
        line["cluster"] = cluster.to_dict()
        # as if TensorFlow could use all GPUs
        line["devices"] = task_devices(cluster, len(cluster.gpus or ()))
    except sr.SlurmResolverError as error:
        line["error"] = f"{type(error).__name__}: {error}"
    return line


def await_all(directory: Path, what: str, total: int) -> None:
    """Waits for tasks on other nodes, with which this task shares its files."""
    name = f"{what}-{os.environ['SLURM_JOB_ID']}.{os.environ['SLURM_STEP_ID']}."
    (directory / f"{name}{os.environ['SLURM_PROCID']}").touch()
    deadline = time.monotonic() + 40
    while len(list(directory.glob(f"{what}-*"))) < total:
        if time.monotonic() > deadline:
            raise TimeoutError(f"not all of {total} tasks are {what}")
        time.sleep(0.02)


def serve(listener: socket.socket, name: bytes) -> None:
    while True:
        connection, _ = listener.accept()
        with connection:
            connection.sendall(name)


def meet(cluster: Fields, directory: Path, total: int) -> Strings:
    """Returns the answer of each address of the step, by rank: its job id and rank."""
    own = cluster["tasks"][cluster["self"]["rank"]]
    listener = socket.create_server(("", int(own["address"].rsplit(":", 1)[1])))
    threading.Thread(
        target=serve, args=(listener, f"{cluster['job_id']}:{own['rank']}".encode()), daemon=True
    ).start()
    await_all(directory, "listening", total)
    answers = []
    for task in cluster["tasks"]:
        host, port = task["address"].rsplit(":", 1)
        with socket.create_connection((host, int(port)), timeout=10) as connection:
            answers.append(connection.recv(100).decode())
    await_all(directory, "answered", total)
    return answers


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--jobs", type=json.loads)
    parser.add_argument("--layout", default="auto")
    parser.add_argument("--node-address")
    parser.add_argument(
        "--unset",
        action="append",
        default=[],
    )
    parser.add_argument(
        "--meet",
        nargs=2,
        metavar=("DIRECTORY", "TOTAL"),
    )
    args = parser.parse_args()
    for variable in args.unset:
        os.environ.pop(variable, None)
    line = account(args.jobs, args.layout, args.node_address)
    if args.meet:
        line["answers"] = meet(line["cluster"], Path(args.meet[0]), int(args.meet[1]))
    Path(
        os.environ["TASK_OUTPUT"],
        ".".join([os.environ[f"SLURM_{name}"] for name in ("JOB_ID", "STEP_ID", "PROCID")]),
    ).write_text(json.dumps(line))


if __name__ == "__main__":
    main()
