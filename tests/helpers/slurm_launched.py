"""Records the host of each process of a launcher, and the cluster that it resolves.

Processes with a cluster wait for each other first, so all agree and can bind every address. Each
process writes its record to a separate file in the folder that the first argument names. The
second argument is optional: the arguments of `slurm_resolver.resolve` as JSON.
"""

from __future__ import annotations

import json
import socket
import sys
import uuid
from pathlib import Path

from kinds import Fields

import slurm_resolver as sr
from slurm_resolver.start.ready import wait_until_ready


def main() -> None:
    folder = Path(sys.argv[1])
    account: Fields = {"host": socket.gethostname(), "error": None}
    try:
        cluster = sr.resolve(**json.loads(sys.argv[2] if len(sys.argv) > 2 else "{}"))
        wait_until_ready(cluster, timeout=20)
        account["cluster"] = cluster.to_dict()
    except sr.SlurmResolverError as error:
        account["error"] = f"{type(error).__name__}: {error}"
    folder.mkdir(exist_ok=True)
    # The rename is atomic: if another task fails, mpirun may end this task while it writes.
    name = f"{account['host']}.{uuid.uuid4()}"
    whole = folder.with_name(name)
    whole.write_text(json.dumps(account))
    whole.rename(folder / name)
    sys.exit(account["error"] is not None)  # mpirun then ends the tasks that wait for this one


if __name__ == "__main__":
    main()
