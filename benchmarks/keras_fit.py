"""Steps a second of Keras 3's `fit` on several workers, against a loop written by hand.

Each way in turn, round after round, on a real Slurm of two nodes: the same perceptron, with small
steps and with larger ones, with metrics.
"""

from __future__ import annotations

import os
import shlex
import statistics
import sys
import tempfile
from pathlib import Path
from typing import Dict, List

import report

sys.path.insert(0, str(report.HERE.parent / "tests" / "helpers"))

WAYS = {
    "loop": "a loop by hand",
    "keras-1": "fit of Keras 3",
    "keras-10": "fit of Keras 3, steps_per_execution=10",
    "tf_keras-1": "fit of tf_keras",
    "tf_keras-10": "fit of tf_keras, steps_per_execution=10",
}
TASK = [sys.executable, "-W", "ignore", str(report.HERE / "keras_fit_task.py")]
# by name, the width of the layers and the steps that are timed
MODELS = {"small steps": (16, 400), "larger steps": (1024, 60)}


def main() -> None:
    """Publishes a table for each number of workers."""
    from slurm_cluster import Node, SlurmCluster

    parser = report.parser(__doc__)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("workers", type=int, nargs="*", default=[2, 4])
    args = parser.parse_args()
    environment = {
        "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
        "TF_CPP_MIN_LOG_LEVEL": "3",
    }
    tables = []
    with tempfile.TemporaryDirectory(dir="/tmp") as folder:
        nodes = [Node("n1"), Node("n2")]
        with SlurmCluster(nodes, Path(folder, "slurm")) as slurm:
            for workers in args.workers:
                rates: Dict[str, Dict[str, List[float]]] = {
                    model: {way: [] for way in WAYS} for model in MODELS
                }
                for _ in range(args.rounds):
                    for model, (units, steps) in MODELS.items():
                        for way in WAYS:
                            task = str(report.HERE / "keras_fit_task.py")
                            words = [
                                sys.executable,
                                "-W",
                                "ignore",
                                task,
                                way,
                                str(units),
                                str(steps),
                            ]
                            command = f"srun -N2 -n{workers} {shlex.join(words)}"
                            done = slurm.run(command, env=environment, timeout=600)
                            told = [line for line in done.stdout.splitlines() if "a second" in line]
                            rates[model][way].append(float(told[0].split()[-1]))
                tables.append(table(workers, args.rounds, rates))
    report.publish("keras_fit", "\n\n".join(tables), write=args.write)


def table(workers: int, rounds: int, rates: Dict[str, Dict[str, List[float]]]) -> str:
    """Returns the table of one number of workers: ratios to the loop first, then steps a second."""
    headings = [f"{workers} workers on two nodes, {rounds} rounds"]
    for model in rates:
        headings += [f"{model}: ratio", "ms a step"]
    rows = []
    for way, name in WAYS.items():
        row = [name]
        for found in rates.values():
            pairs = zip(found[way], found["loop"])
            ratio = statistics.median(own / loop for own, loop in pairs)
            row += [f"{ratio:.2f}", f"{1000 / statistics.median(found[way]):.2f}"]
        rows.append(row)
    return report.table(headings, rows)


if __name__ == "__main__":
    main()
