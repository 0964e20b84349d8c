"""Measures a step of Keras 3's `fit` on several workers, compared with a loop written by hand.

The workers run on a real Slurm of two nodes. They train the same perceptron, with metrics, in small
steps and in larger ones. The same processes train in both ways: a block of steps by hand precedes
each epoch of `fit`, so that other programs on the machine disturb both alike.
"""

from __future__ import annotations

import shlex
import statistics
import sys
from collections.abc import Iterator
from typing import Any, NamedTuple

import report
from real_slurm import ENVIRONMENT, start_slurm

# The names of a library and a way in keras_fit_task.py.
Way = tuple[str, str]
WAYS: dict[Way, str] = {
    ("keras", "1"): "fit of Keras 3",
    ("keras", "10"): "fit of Keras 3, steps_per_execution=10",
    ("keras", "uneven"): "fit of Keras 3, uneven batches",
    ("tf_keras", "1"): "fit of tf_keras",
    ("tf_keras", "10"): "fit of tf_keras, steps_per_execution=10",
}
LIBRARIES = ["keras", "tf_keras"]
TASK = [sys.executable, "-W", "ignore", str(report.FOLDER / "keras_fit_task.py")]
# The width of the layers, the steps of a block, and the blocks of each way in a round.
MODELS = {"small steps": (16, 20, 30), "larger steps": (1024, 8, 8)}


class Pair(NamedTuple):
    """Time and CPU time of a step in ms: in a block by hand, and in the epoch of `fit` after it."""

    loop: float
    loop_cpu: float
    fit: float
    fit_cpu: float


Results = dict[str, dict[Way, list[Pair]]]  # by model and way


def main() -> None:
    """Publishes a table for each number of workers, and a plot."""
    parser = report.make_parser(__doc__, counts=[2, 4], of="workers", rounds=2)
    args = parser.parse_args()
    results: dict[int, Results] = {}
    with start_slurm(2) as slurm:
        for workers in args.counts:
            results[workers] = {model: {way: [] for way in WAYS} for model in MODELS}
            for _ in range(args.rounds):
                for library in LIBRARIES:
                    for model, kind, pair in measure(slurm, workers, library):
                        results[workers][model][library, kind].append(pair)
    parts = [table(workers, of_workers) for workers, of_workers in results.items()]
    parts.append(plot(results, args.write))
    report.publish("keras_fit", "\n\n".join(parts), write=args.write)


def measure(slurm: Any, workers: int, library: str) -> Iterator[tuple[str, str, Pair]]:
    """Yields the model, the way and the times of each pair of blocks."""
    models = [",".join(map(str, model)) for model in MODELS.values()]
    command = shlex.join([*TASK, library, *models])
    done = slurm.run(f"srun -N2 -n{workers} {command}", env=ENVIRONMENT, timeout=900)
    names = {str(width): name for name, (width, _, _) in MODELS.items()}
    for line in done.stdout.splitlines():
        if line.startswith("ms: "):
            width, kind, *times = line.split()[1:]
            yield names[width], kind, Pair(*map(float, times))


def ratio_quartiles(pairs: list[Pair]) -> list[float]:
    """Returns the quartiles of the steps that `fit` does while the loop does one."""
    return statistics.quantiles((pair.loop / pair.fit for pair in pairs), method="inclusive")


def table(workers: int, results: Results) -> str:
    """Returns the table of one number of workers."""
    headings = [f"{workers} workers on two nodes"]
    for model, ways in results.items():
        pairs = len(ways["keras", "1"])
        headings += [f"{model}: ratio", f"quartiles of {pairs}", "ms per step", "loop by hand"]
        headings += ["CPU ms per step", "loop by hand"]
    rows = []
    for way, name in WAYS.items():
        row = [name]
        for ways in results.values():
            low, middle, high = ratio_quartiles(ways[way])
            loop, loop_cpu, fit, fit_cpu = map(statistics.median, zip(*ways[way]))
            row += [f"{middle:.2f}", f"{low:.2f} to {high:.2f}"]
            row += [f"{fit:.2f}", f"{loop:.2f}", f"{fit_cpu:.2f}", f"{loop_cpu:.2f}"]
        rows.append(row)
    return report.table(headings, rows)


def plot(results: dict[int, Results], write: bool) -> str:
    """Plots the median ratios by the number of workers."""
    workers = list(results)
    lines = {
        f"{model}: {name}": (
            workers,
            [ratio_quartiles(results[count][model][way])[1] for count in workers],
        )
        for model in MODELS
        for way, name in WAYS.items()
    }
    labels = ("workers on two nodes", "steps while a loop by hand does one")
    return report.plot(
        "keras_fit", lines, labels, lambda axes: axes.set_xticks(workers), write=write
    )


if __name__ == "__main__":
    main()
