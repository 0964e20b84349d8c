"""A task that shares a secret by each means with the other: prints the means and the key's hash.

Task 0 makes them; what it offers goes by files in the folder that is the argument.
"""

from __future__ import annotations

import hashlib
import json
import os
import sys
import time
from pathlib import Path

from slurm_resolver.rendezvous.secret import key_of_offer, own_secret


def await_file(path: Path) -> str:
    """Returns the text of a file as soon as it is there."""
    until = time.monotonic() + 50
    while not path.exists():
        if time.monotonic() > until:
            sys.exit(f"{path} does not come")
        time.sleep(0.01)
    return path.read_text()


def give_file(path: Path, text: str) -> None:
    """Makes a file that is whole as soon as it is there."""
    whole = path.with_name(f"{path.name}.new")
    whole.write_text(text)
    whole.rename(path)


def main() -> None:
    """Does it once for each means, the variable first, as it comes before the others."""
    folder, rank = Path(sys.argv[1]), os.environ["SLURM_PROCID"]
    for wanted in (None, "munge", "file"):
        if wanted:
            os.environ.pop("SLURM_RESOLVER_SECRET", None)
            os.environ["SLURM_RESOLVER_SECRET_MEANS"] = wanted
        if rank == "0":
            secret = own_secret(os.environ["SLURM_STEP_ID"])
            give_file(folder / f"offer {wanted}", json.dumps(dict(secret.offer)))
            means, key = secret.means, secret.key
        else:
            offer = json.loads(await_file(folder / f"offer {wanted}"))
            means, key = offer["means"], key_of_offer(offer, "task 0")
        print(means, hashlib.sha256(key).hexdigest(), flush=True)
    if rank == "0":
        await_file(folder / "done")
    else:
        give_file(folder / "done", "")


if __name__ == "__main__":
    main()
