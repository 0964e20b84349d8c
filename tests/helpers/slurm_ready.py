"""What each task of a test step runs to see whether faults are told before TensorFlow starts.

It resolves the cluster and waits for the others, with a fault in one rank where one is asked for.
What came of it goes to a file of its own in the folder TASK_OUTPUT. Where there is a folder
TASK_EVENTS, the tasks start together as soon as all are in it, each with its process id in ``pid
RANK``; ``--late '{"0": 6}'`` lets rank 0 come 6 s later, or when there is a file ``go`` (null),
and not at all where there is one ``stop``. ``A came to B`` is there when rank A has.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any, Dict, Optional

from slurm_resolver.rendezvous.gathering import Gathering
from slurm_resolver.rendezvous.peer import Peer
from slurm_resolver.rendezvous.secret import describe_means
from slurm_resolver.rendezvous.wire import Message

import slurm_resolver as sr
from slurm_resolver.preflight import agreement
from slurm_resolver.preflight.ready import wait_until_ready


def start_together(folder: Path, rank: int, late: Dict[str, Optional[float]]) -> None:
    add = Gathering.add

    def add_and_tell(self: Gathering, peer: Peer, message: Message) -> Optional[int]:
        came = add(self, peer, message)
        if came is not None:
            (folder / f"{came} came to {rank}").touch()
        return came

    Gathering.add = add_and_tell  # type: ignore[method-assign]
    (folder / f"starts {rank}").write_text(str(os.getpid()))
    (folder / f"starts {rank}").rename(folder / f"pid {rank}")
    while len(list(folder.glob("pid *"))) < int(os.environ["SLURM_NTASKS"]):
        time.sleep(0.02)
    if str(rank) in late:
        seconds = late[str(rank)]
        started = time.monotonic()
        while seconds is None or time.monotonic() < started + seconds:
            if (folder / "go").exists():
                break
            if (folder / "stop").exists():
                sys.exit()
            time.sleep(0.02)


def end_when_come(rank: int) -> None:
    """Ends this task when it has come to the meeting point; as that one, when all but one have."""
    folder, others = Path(os.environ["TASK_EVENTS"]), int(os.environ["SLURM_NTASKS"]) - 1
    while True:
        came = {path.name for path in folder.glob("* came to 0")} - {"0 came to 0"}
        if len(came) >= others - 1 if rank == 0 else f"{rank} came to 0" in came:
            os._exit(0)
        time.sleep(0.02)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--timeout", type=float, default=30.0)
    parser.add_argument("--fault", default="")
    parser.add_argument("--in-rank", type=int, default=-1)
    parser.add_argument("--node-address")
    parser.add_argument("--prefix", default="", help="of the file's name")
    parser.add_argument("--child", action="store_true", help="then meet once more, in a child")
    parser.add_argument("--late", type=json.loads, default={})
    args = parser.parse_args()
    # Where the tests run in the background of a shell it is ignored.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    rank = int(os.environ["SLURM_PROCID"])
    fault = args.fault if rank == args.in_rank else ""

    if fault == "never starts":
        time.sleep(args.timeout + 3)
        return
    if fault == "exits early":
        sys.exit(0)
    if fault == "another version":
        vars(agreement)["__version__"] = "9.9.9"
    jobs = {"ps": 1, "worker": -1} if fault == "other jobs" else None
    keywords: Dict[str, Any] = {"placement": "rank"} if fault == "another placement" else {}
    cluster = sr.resolve(jobs, node_address=args.node_address, **keywords)
    if fault == "a wrong layout":
        tasks = list(cluster.tasks)
        tasks[0], tasks[-1] = (
            tasks[0]._replace(node=tasks[-1].node),
            tasks[-1]._replace(node=tasks[0].node),
        )
        cluster = cluster._replace(tasks=tuple(tasks))
    if fault == "a taken port":
        assert cluster.task is not None
        holder = socket.create_server(("", int(cluster.task.address.rpartition(":")[2])))
        assert holder.fileno() > 0
    if fault == "ends while it waits":
        threading.Thread(target=end_when_come, args=[rank], daemon=True).start()

    if "TASK_EVENTS" in os.environ:
        start_together(Path(os.environ["TASK_EVENTS"]), rank, args.late)

    if fault == "only resolves":
        time.sleep(args.timeout + 3)
        return
    outcome: Dict[str, Any] = {"rank": rank, "error": None}
    started = time.monotonic()
    try:
        wait_until_ready(cluster, args.timeout)
    except sr.RendezvousError as error:
        outcome["error"] = str(error)
    outcome["seconds"] = time.monotonic() - started
    outcome["means"] = describe_means()[0]
    Path(os.environ["TASK_OUTPUT"], f"{args.prefix}{rank}").write_text(json.dumps(outcome))
    if args.child:
        again = [word for word in sys.argv if word != "--child"]
        subprocess.run([sys.executable, *again, "--prefix", "child-"], check=True)


if __name__ == "__main__":
    main()
