"""Runs train.py with several numbers of ps, and reports which trains the fastest.

Start it in a batch job or salloc's shell, without srun: it starts every run with srun itself, on
all tasks of the allocation. Tasks that are not ps train. It passes unknown options on to train.py.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
from math import gcd
from pathlib import Path
from statistics import median
from typing import Any

TRAIN = Path(__file__).resolve().parent / "train.py"
USUAL = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128)
COLUMNS = {  # heading: how a row shows it
    "ps": "{ps}",
    "workers": "{workers}",
    "ratio": "{ratio}",
    "steps/s": "{steps_per_second:.1f}",
    "spread": "{lowest:.1f} to {highest:.1f}",
    "images/s": "{images_per_second:.0f}",
    "test accuracy": "{test_accuracy:.4f}",
    "runs": "{runs}",
}
ALWAYS = ("ps", "workers", "ratio", "runs")  # known even if all runs failed
Result = dict[str, Any]


def measure(ps: int, tasks: int, options: list[str]) -> Result | None:
    """Returns the result that the chief printed as JSON; None if the training failed."""
    step = [f"--ntasks={tasks}"]
    if "SLURM_CPUS_PER_TASK" in os.environ:  # not every srun inherits it
        step.append(f"--cpus-per-task={os.environ['SLURM_CPUS_PER_TASK']}")
    program = [sys.executable, "-u", str(TRAIN), "--ps", str(ps), *options]
    command = ["srun", *step, "--kill-on-bad-exit=1", *program]
    result: Result = {}
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as run:
        assert run.stdout is not None
        for line in run.stdout:
            if line.startswith('{"ps"'):
                result = json.loads(line)
            else:
                print(line, end="", flush=True)  # the training's progress
    if run.returncode == 0 and "steps_per_second" in result:
        return result
    why = "no result" if not result else "a task" if run.returncode else "too few --steps"
    print(f"failed: {why}, status {run.returncode} of {' '.join(command)}", file=sys.stderr)
    return None


def summarise(ps: int, tasks: int, results: list[Result | None]) -> Result:
    """Returns the row of a number of ps: the medians of its runs."""
    good = [result for result in results if result is not None]
    workers, failed = tasks - ps, len(results) - len(good)
    common = gcd(ps, workers)
    row: Result = {"ps": ps, "workers": workers, "failed": failed}
    row["ratio"] = f"{ps // common} : {workers // common}"
    row["runs"] = f"{len(good)}, {failed} failed" if failed else str(len(good))
    row["speeds"] = [result["steps_per_second"] for result in good]
    if good:
        row["lowest"], row["highest"] = min(row["speeds"]), max(row["speeds"])
        for key in ("steps_per_second", "images_per_second", "test_accuracy"):
            row[key] = median(result[key] for result in good)
    return row


def ranking(rows: list[Result]) -> list[Result]:
    """Returns the rows that have a speed, the fastest first."""
    return sorted((row for row in rows if row["speeds"]), key=lambda row: -row["steps_per_second"])


def name(row: Result) -> str:
    """Returns the name of a ratio in messages."""
    return f"{row['ps']} ps : {row['workers']} workers"


def verdict(rows: list[Result]) -> str:
    """Returns the best ratio, and whether the runs show that it is the best."""
    broken = [name(row) for row in rows if row["failed"]]
    failed = f" Failed: {', '.join(broken)}." if broken else ""
    if not ranking(rows):
        return f"Best ratio: none.{failed}"
    best, *others = ranking(rows)
    alike = [name(row) for row in others if row["highest"] >= best["lowest"]]
    if not others:
        sure = "There is no other to compare it with."
    elif len(best["speeds"]) == 1:
        sure = "One run cannot tell a difference from noise: use --repeats 3."
    elif alike:
        sure = f"The runs overlap, so these may be as fast: {', '.join(alike)}."
    else:
        sure = "Each of its runs was faster than all runs of the others."
    return f"Best ratio: {name(best)}, {best['steps_per_second']:.1f} steps/s. {sure}{failed}"


def as_table(rows: list[Result]) -> str:
    """Returns the rows as a Markdown table, and the verdict below it."""
    lines = [list(COLUMNS), ["---:"] * len(COLUMNS)]
    for row in rows:
        cells = [shown if row["speeds"] or key in ALWAYS else "–" for key, shown in COLUMNS.items()]
        lines.append([cell.format(**row) for cell in cells])
    return "".join(f"| {' | '.join(line)} |\n" for line in lines) + f"\n{verdict(rows)}\n"


def plot(rows: list[Result], path: Path) -> None:
    """Writes every run's steps per second, and each ratio's median and spread."""
    import matplotlib

    matplotlib.use("Agg")  # nodes have no display
    from matplotlib import pyplot

    figure, panel = pyplot.subplots(figsize=(8, 4.5), layout="constrained")
    best = ranking(rows)[:1]
    for place, row in enumerate(rows):
        color = "C1" if row in best else "C0"
        if row["speeds"]:
            panel.bar(place, row["steps_per_second"], 0.6, color=color, alpha=0.4)
            panel.vlines(place, row["lowest"], row["highest"], color=color)
            panel.plot([place] * len(row["speeds"]), row["speeds"], "o", color=color)
        if row["failed"]:
            panel.text(place, 0, "failed", ha="center", va="bottom", color="C3")
    panel.set_xticks(range(len(rows)), [f"{row['ps']} : {row['workers']}" for row in rows])
    panel.set(xlabel="ps : workers", ylabel="steps/s, all workers together")
    panel.set_title(f"best ratio: {name(best[0])}" if best else "best ratio: none")
    panel.set_ylim(bottom=0)
    panel.grid(alpha=0.3, axis="y")
    figure.savefig(path, dpi=120)
    pyplot.close(figure)


def tasks_of_the_allocation() -> int:
    """Returns how many tasks a plain srun would start; 0 outside an allocation."""
    # Not SLURM_TASKS_PER_NODE: with --exclusive it counts CPUs, if no number of tasks was given.
    variables = ("SLURM_NTASKS", "SLURM_JOB_NUM_NODES")
    return next((int(os.environ[key]) for key in variables if key in os.environ), 0)


def main() -> None:
    """Measures the ratios in turn, several times, and writes the table after each round."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "--ps", type=int, nargs="+", metavar="N", help="(1, 2, 3, 4, 6, 8 … half of the tasks)"
    )
    parser.add_argument("--ntasks", type=int, help="of each run (all of the allocation)")
    parser.add_argument("--repeats", type=int, default=3, help="runs of each number of ps (3)")
    parser.add_argument("--output", type=Path, default=Path("ps_ratio"), help="folder (ps_ratio)")
    args, options = parser.parse_known_args()
    tasks = args.ntasks or tasks_of_the_allocation()
    if "SLURM_JOB_ID" not in os.environ:
        parser.error("SLURM_JOB_ID is not set: start this in an allocation (ps_ratio.sbatch)")
    counts = args.ps or [count for count in USUAL if 2 * count <= tasks]
    if not counts or not all(0 < count < tasks for count in counts):
        parser.error(f"--ps {counts}, but {tasks} tasks leave a worker only for 1 to {tasks - 1}")
    if args.repeats < 1:
        parser.error(f"--repeats {args.repeats}: expected 1 or more")

    args.output.mkdir(parents=True, exist_ok=True)
    results: dict[int, list[Result | None]] = {count: [] for count in counts}
    rows: list[Result] = []
    # The runs are in rounds, so that a machine that slows down affects all ratios.
    for repeat in range(args.repeats):
        for count in results:
            if None in results[count]:
                continue  # the next run would fail again
            print(f"--- ps: {count} of {tasks} tasks, run {repeat + 1}", flush=True)
            results[count].append(measure(count, tasks, options))
            rows = [summarise(ps, tasks, runs) for ps, runs in results.items() if runs]
            (args.output / "ps_ratio.md").write_text(as_table(rows), encoding="utf-8")
    print(as_table(rows), end="", flush=True)
    try:
        plot(rows, args.output / "ps_ratio.png")
    except ImportError as error:
        print(f"no plot ({error}): pip install matplotlib", file=sys.stderr)
    failed = [name(row) for row in rows if row["failed"]]
    if failed:
        sys.exit(f"failed: {', '.join(failed)}")


if __name__ == "__main__":
    main()
