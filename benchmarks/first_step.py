"""How long it takes from srun to the end of the first training step, on a real Slurm of two nodes.

Each way to tell TensorFlow its cluster in turn, round after round, against a TF_CONFIG written by
hand for just these hosts. Most of the time is TensorFlow's own import.
"""

from __future__ import annotations

import json
import os
import shlex
import statistics
import sys
import tempfile
import time
from pathlib import Path
from typing import Dict, List

import report

sys.path.insert(0, str(report.FOLDER.parent / "tests" / "helpers"))

HOSTS = ["n1", "n2"]
WITH_EXEC = "slurm-resolver exec --wait"
BY_HAND = "TF_CONFIG by hand"
WAYS = [
    BY_HAND,
    "this resolver",
    "this resolver, wait_until_ready()",
    WITH_EXEC,
    "TensorFlow's resolver",
]


def train(way: str) -> None:
    """Is one of the tasks: makes the strategy in this way, and trains one step."""
    if way == BY_HAND:
        cluster = {"worker": [f"{host}:23456" for host in HOSTS]}
        task = {"type": "worker", "index": int(os.environ["SLURM_PROCID"])}
        os.environ["TF_CONFIG"] = json.dumps({"cluster": cluster, "task": task})
    import tensorflow as tf

    resolver = None
    if way.startswith("this resolver"):
        from slurm_resolver import SlurmClusterResolver

        resolver = SlurmClusterResolver()
        if way.endswith("wait_until_ready()"):
            resolver.wait_until_ready()
    elif way == "TensorFlow's resolver":
        resolver = tf.distribute.cluster_resolver.SlurmClusterResolver(
            gpus_per_node=1, gpus_per_task=1, auto_set_gpu=False
        )
        os.environ["CUDA_VISIBLE_DEVICES"] = ""
    strategy = tf.distribute.MultiWorkerMirroredStrategy(resolver)
    with strategy.scope():
        weights = tf.Variable(tf.ones([100, 10]))

    @tf.function  # type: ignore[untyped-decorator]
    def step() -> None:
        def replica() -> None:
            with tf.GradientTape() as tape:
                loss = tf.reduce_mean(tf.ones([32, 100]) @ weights)
            gradient = tape.gradient(loss, weights)
            total = tf.distribute.get_replica_context().all_reduce("SUM", gradient)
            weights.assign_sub(0.1 * total)

        strategy.run(replica)

    step()
    trained = float(tf.reduce_sum(weights))
    assert trained < 999, trained
    print(f"rank {os.environ['SLURM_PROCID']} trained at {time.time()}", flush=True)


def main() -> None:
    """Publishes a table; or trains, where it was started to do that."""
    if sys.argv[1:2] == ["train"]:
        train(sys.argv[2])
        return
    from slurm_cluster import Node, SlurmCluster

    parser = report.make_parser(__doc__)
    parser.add_argument("--rounds", type=int, default=9)
    args = parser.parse_args()
    environment = {
        "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
        "TF_CPP_MIN_LOG_LEVEL": "3",
    }
    taken: Dict[str, List[float]] = {way: [] for way in WAYS}
    with tempfile.TemporaryDirectory(dir="/tmp") as folder:
        nodes = [Node(host) for host in HOSTS]
        with SlurmCluster(nodes, Path(folder, "slurm")) as slurm:
            for _ in range(args.rounds):
                for way in WAYS:
                    before = "slurm-resolver exec --wait 60 --" if way == WITH_EXEC else ""
                    program = shlex.join([sys.executable, __file__, "train", way])
                    command = f"srun -N2 -n2 --kill-on-bad-exit=1 {before} {program}"
                    start = time.time()
                    done = slurm.run(command, env=environment, timeout=300)
                    ends = [float(line.split()[-1]) for line in done.stdout.splitlines()]
                    assert len(ends) == len(HOSTS), done
                    taken[way].append(max(ends) - start)
    rows = []
    for way, times in taken.items():
        ratio = statistics.median(own / hand for own, hand in zip(times, taken[BY_HAND]))
        rows.append((way, f"{ratio:.3f}", f"{statistics.median(times):.2f}"))
    headings = [f"two nodes, {args.rounds} rounds", "ratio", "seconds to the first step"]
    report.publish("first_step", report.table(headings, rows), write=args.write)


if __name__ == "__main__":
    main()
