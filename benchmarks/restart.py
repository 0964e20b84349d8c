"""How long a training stands still when a worker is killed, and is started again inside its job.

On a real Slurm of two nodes, with one worker on each: from the end of the worker that fails to the
end of the first step that all workers have done after it, under `slurm-resolver supervise`; beside
it the time from a plain srun of the same program to its first step, in the same job.
"""

from __future__ import annotations

import os
import re
import shlex
import signal
import statistics
import sys
import tempfile
import time
from pathlib import Path
from typing import Any, Dict, List, Tuple

import report

sys.path.insert(0, str(report.HERE.parent / "tests" / "helpers"))

STEPS = 20
FAILS_AFTER = 13  # steps, at the first start
HEADINGS = ("ratio", "seconds to the first step", "until the tasks start", "from there")


def train(folder: str) -> None:
    """Is one of the tasks: trains, saves every 10 steps, and fails once if a file asks for it."""
    rank = int(os.environ["SLURM_PROCID"])
    print(f"starts {rank} {time.time()}", flush=True)
    import tensorflow as tf

    import slurm_resolver

    resolver = slurm_resolver.SlurmClusterResolver()
    resolver.wait_until_ready()
    strategy = slurm_resolver.MultiWorkerMirroredStrategy(resolver)
    with strategy.scope():
        weights = tf.Variable(tf.ones([100, 10]), name="weights")

    @tf.function  # type: ignore[untyped-decorator]
    def step(numbers: Any) -> None:
        def replica(numbers: Any) -> None:
            with tf.GradientTape() as tape:
                loss = tf.reduce_mean(numbers @ weights)
            gradient = tape.gradient(loss, weights)
            total = tf.distribute.get_replica_context().all_reduce("SUM", gradient)
            weights.assign_sub(0.1 * total)

        strategy.run(replica, args=(numbers,))

    loop = slurm_resolver.ResumableLoop(
        f"{folder}/checkpoints", strategy, save_every=10, weights=weights
    )
    data = tf.data.Dataset.from_tensors(tf.ones([32, 100])).repeat(STEPS)
    failing = Path(folder, "failing")
    for _ in loop.epochs(1):
        for batch in loop.batches(strategy.experimental_distribute_dataset(data)):
            step(batch)
            print(f"step {rank} {time.time()}", flush=True)
            if rank == 1 and loop.step + 1 == FAILS_AFTER and failing.exists():
                failing.unlink()
                print(f"fails {rank} {time.time()}", flush=True)
                os.kill(os.getpid(), signal.SIGKILL)


def events(output: str) -> List[Tuple[str, float]]:
    """Returns what the tasks told, and when, in the order of time."""
    found = re.findall(r"^(starts|step|fails) \d ([\d.]+)$", output, re.M)
    return sorted(((what, float(when)) for what, when in found), key=lambda event: event[1])


def seconds(told: List[Tuple[str, float]], since: float) -> Tuple[float, float]:
    """Returns how long after that the last task has started, and the last has done a step."""
    later = [(what, when - since) for what, when in told if when > since]
    starts = [when for what, when in later if what == "starts"]
    steps = [when for what, when in later if what == "step" and when > max(starts)]
    assert len(starts) == 2, told
    return max(starts), steps[1]  # each task's first, as no task can do two alone


def main() -> None:
    """Publishes a table; or trains, where it was started to do that."""
    if sys.argv[1:2] == ["train"]:
        train(sys.argv[2])
        return
    from slurm_cluster import Node, SlurmCluster

    parser = report.parser(__doc__)
    parser.add_argument("--rounds", type=int, default=5)
    args = parser.parse_args()
    environment = {
        "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
        "TF_CPP_MIN_LOG_LEVEL": "3",
    }
    taken: Dict[str, List[Tuple[float, float]]] = {"plain srun": [], "supervise, a restart": []}
    with tempfile.TemporaryDirectory(dir="/tmp") as top:
        nodes = [Node("n1"), Node("n2")]
        with SlurmCluster(nodes, Path(top, "slurm")) as slurm:

            def job(command: str, folder: Path) -> List[Tuple[str, float]]:
                program = shlex.join([sys.executable, __file__, "train", str(folder)])
                line = f"salloc -Q -N2 --ntasks-per-node=1 {command} {program}"
                return events(slurm.run(line, env=environment, timeout=300).stdout)

            for number in range(args.rounds):
                folder = Path(top, str(number))
                folder.mkdir()
                start = time.time()
                told = job("srun --kill-on-bad-exit=1", folder / "plain")
                taken["plain srun"].append(seconds(told, start))
                (folder / "failing").touch()
                supervise = "slurm-resolver supervise --watch 0 --"
                told = job(f"{supervise} srun --kill-on-bad-exit=1", folder)
                failed = next(when for what, when in told if what == "fails")
                taken["supervise, a restart"].append(seconds(told, failed))
    rows = []
    for name, times in taken.items():
        pairs = [own[1] / plain[1] for own, plain in zip(times, taken["plain srun"])]
        started, stepped = (statistics.median(one) for one in zip(*times))
        between = statistics.median(step - start for start, step in times)
        rows.append(
            (
                name,
                f"{statistics.median(pairs):.2f}",
                f"{stepped:.2f}",
                f"{started:.2f}",
                f"{between:.2f}",
            )
        )
    headings = [f"two workers, {args.rounds} rounds", *HEADINGS]
    report.publish("restart", report.table(headings, rows), write=args.write)


if __name__ == "__main__":
    main()
