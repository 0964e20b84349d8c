"""What each task of benchmarks/meeting_live.py runs: prints when it came to a meeting, and left it.

All tasks are on one machine, whose clock is the same for all.
"""

from __future__ import annotations

import sys
import time

import slurm_resolver as sr
from slurm_resolver.preflight.ready import wait_until_ready


def main() -> None:
    """Meets in the way of the argument."""
    way = sys.argv[1]
    if way == "layout":
        # The first call imports what a meeting needs, and is not to be measured.
        from slurm_resolver.cluster import layout_exchange  # noqa: F401
        from slurm_resolver.coordination import client, service  # noqa: F401

        came = time.monotonic()
        sr.resolve()
    elif way == "ready":
        cluster = sr.resolve()
        from slurm_resolver.coordination import service  # noqa: F401

        came = time.monotonic()
        wait_until_ready(cluster, 100)
    elif way == "alone":
        sr.resolve()
        came = time.monotonic()
    else:
        import tensorflow as tf

        resolver = sr.SlurmClusterResolver()
        resolver.wait_until_ready()
        came = time.monotonic()
        tf.distribute.MultiWorkerMirroredStrategy(cluster_resolver=resolver)
    print("met", came, time.monotonic(), flush=True)


if __name__ == "__main__":
    main()
