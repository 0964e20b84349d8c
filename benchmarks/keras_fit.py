"""How long a step of Keras 3's `fit` takes on several workers, against a loop written by hand.

On a real Slurm of two nodes: the same perceptron, with small steps and with larger ones, with
metrics. The same processes train in both ways in turn, a block of steps by hand before each epoch
of `fit`, so that what else the machine does meets both alike.
"""

from __future__ import annotations

import os
import shlex
import statistics
import sys
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Dict, Iterator, List, NamedTuple, Tuple

import report

sys.path.insert(0, str(report.FOLDER.parent / "tests" / "helpers"))

# by library, and what the task calls the way
WAYS = {
    ("keras", "1"): "fit of Keras 3",
    ("keras", "10"): "fit of Keras 3, steps_per_execution=10",
    ("keras", "uneven"): "fit of Keras 3, a row less in each batch",
    ("tf_keras", "1"): "fit of tf_keras",
    ("tf_keras", "10"): "fit of tf_keras, steps_per_execution=10",
}
LIBRARIES = dict.fromkeys(library for library, _ in WAYS)
TASK = [sys.executable, "-W", "ignore", str(report.FOLDER / "keras_fit_task.py")]
# by name, the width of the layers, the steps of a block, and the blocks of each way in a round
MODELS = {"small steps": (16, 20, 30), "larger steps": (1024, 8, 8)}

Way = Tuple[str, str]


class Pair(NamedTuple):
    """The ms of a step in a block by hand, and in one by `fit` next to it; and those of CPU."""

    loop: float
    loop_cpu: float
    fit: float
    fit_cpu: float


Taken = Dict[str, Dict[Way, List[Pair]]]  # by model and way


def main() -> None:
    """Publishes a table for each number of workers, and a plot."""
    from slurm_cluster import Node, SlurmCluster

    parser = report.make_parser(__doc__)
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("workers", type=int, nargs="*", default=[2, 4])
    args = parser.parse_args()
    found: Dict[int, Taken] = {}
    nodes = [Node("n1"), Node("n2")]
    with TemporaryDirectory(dir="/tmp") as folder, SlurmCluster(nodes, Path(folder, "s")) as slurm:
        for workers in args.workers:
            found[workers] = {model: {way: [] for way in WAYS} for model in MODELS}
            for _ in range(args.rounds):
                for library in LIBRARIES:
                    for model, kind, pair in run(slurm, workers, library):
                        found[workers][model][library, kind].append(pair)
    parts = [table(workers, taken) for workers, taken in found.items()]
    report.publish("keras_fit", "\n\n".join([*parts, plot(found, args.write)]), write=args.write)


def run(slurm: Any, workers: int, library: str) -> Iterator[Tuple[str, str, Pair]]:
    """Yields the model, the way, and what was measured, for each pair of blocks."""
    environment = {
        "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
        "TF_CPP_MIN_LOG_LEVEL": "3",
    }
    models = [",".join(map(str, model)) for model in MODELS.values()]
    command = shlex.join([*TASK, library, *models])
    done = slurm.run(f"srun -N2 -n{workers} {command}", env=environment, timeout=900)
    names = {str(width): name for name, (width, _, _) in MODELS.items()}
    for line in done.stdout.splitlines():
        if line.startswith("ms: "):
            width, kind, *times = line.split()[1:]
            yield names[width], kind, Pair(*map(float, times))


def ratios(pairs: List[Pair]) -> List[float]:
    """Returns the quartiles of how many steps `fit` did while the loop did one."""
    return statistics.quantiles((pair.loop / pair.fit for pair in pairs), method="inclusive")


def table(workers: int, taken: Taken) -> str:
    """Returns the table of one number of workers."""
    headings = [f"{workers} workers on two nodes"]
    for model, ways in taken.items():
        pairs = len(ways["keras", "1"])
        headings += [f"{model}: ratio", f"quartiles of {pairs}", "ms a step", "by hand"]
        headings += ["CPU ms a step", "by hand"]
    rows = []
    for way, name in WAYS.items():
        row = [name]
        for ways in taken.values():
            low, middle, high = ratios(ways[way])
            loop, loop_cpu, fit, fit_cpu = map(statistics.median, zip(*ways[way]))
            row += [f"{middle:.2f}", f"{low:.2f} to {high:.2f}"]
            row += [f"{fit:.2f}", f"{loop:.2f}", f"{fit_cpu:.2f}", f"{loop_cpu:.2f}"]
        rows.append(row)
    return report.table(headings, rows)


def plot(found: Dict[int, Taken], write: bool) -> str:
    """Draws the ratios by the number of workers."""
    workers = list(found)
    lines = {
        f"{model}: {name}": (workers, [ratios(found[count][model][way])[1] for count in workers])
        for model in MODELS
        for way, name in WAYS.items()
    }
    labels = ("workers on two nodes", "steps while a loop by hand does one")
    return report.plot(
        "keras_fit", lines, labels, lambda axes: axes.set_xticks(workers), write=write
    )


if __name__ == "__main__":
    main()
