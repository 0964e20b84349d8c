"""A task of benchmarks/meeting_live.py: meets the others, and prints when it arrived and ended.

All tasks run on one machine, so their clocks are the same.
"""

from __future__ import annotations

import sys
import time

import slurm_resolver as sr
from slurm_resolver.start.ready import wait_until_ready


def main() -> None:
    """Meets in the way that the argument names."""
    way = sys.argv[1]
    if way == "layout":
        # A meeting imports these modules. Imports are not measured.
        from slurm_resolver.cluster import layout_exchange  # noqa: F401
        from slurm_resolver.coordination import client, service  # noqa: F401

        arrived = time.monotonic()
        sr.resolve()
    elif way == "ready":
        cluster = sr.resolve()
        from slurm_resolver.coordination import service  # noqa: F401

        arrived = time.monotonic()
        wait_until_ready(cluster, 100)
    else:
        sr.resolve()
        arrived = time.monotonic()
    print("met", arrived, time.monotonic(), flush=True)


if __name__ == "__main__":
    main()
