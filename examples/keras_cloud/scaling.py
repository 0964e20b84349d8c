"""Runs train.py on 1, 2, … N nodes of an allocation, and writes the recipe's table and plot.

Start it in a batch job or salloc's shell, without srun: it starts every run with srun itself. It
passes unknown options on to train.py.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import Any

TRAIN = Path(__file__).resolve().parent / "train.py"
COLUMNS = {  # heading: how a row shows it
    "nodes": "{nodes}",
    "tasks": "{tasks}",
    "time (s)": "{seconds:.1f}",
    "speed-up": "{speed_up:.2f}",
    "images/s": "{images_per_second:.0f}",
    "loss": "{loss:.4f}",
    "accuracy": "{accuracy:.4f}",
    "test accuracy": "{test_accuracy:.4f}",
}


def measure(nodes: int, tasks_per_node: int, options: list[str]) -> dict[str, Any]:
    """Returns the result that rank 0 of a training on this many nodes printed as JSON."""
    tasks = nodes * tasks_per_node
    step = [f"--nodes={nodes}", f"--ntasks={tasks}", f"--ntasks-per-node={tasks_per_node}"]
    if "SLURM_CPUS_PER_TASK" in os.environ:  # not every srun inherits it
        step.append(f"--cpus-per-task={os.environ['SLURM_CPUS_PER_TASK']}")
    command = ["srun", *step, "--kill-on-bad-exit=1", sys.executable, "-u", str(TRAIN), *options]
    result: dict[str, Any] = {}
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as run:
        assert run.stdout is not None
        for line in run.stdout:
            if line.startswith('{"nodes"'):
                result = json.loads(line)
            else:
                print(line, end="", flush=True)  # the training's progress
    if run.returncode or not result:
        sys.exit(
            f"the run on {nodes} nodes ended with status {run.returncode}: {' '.join(command)}"
        )
    return result


def shared_machines(nodes: int, tasks_per_node: int) -> str:
    """Returns a note if all nodes are one machine with too few CPUs for their tasks, else "".

    Tasks of simulated nodes, and of some containers, share CPUs: their times say nothing about real
    nodes.
    """
    script = "echo $(cat /proc/sys/kernel/random/boot_id) $(getconf _NPROCESSORS_ONLN)"
    step = [f"--nodes={nodes}", f"--ntasks={nodes}", "--ntasks-per-node=1", "sh", "-c", script]
    done = subprocess.run(["srun", *step], stdout=subprocess.PIPE, text=True)
    asked = tasks_per_node * int(os.environ.get("SLURM_CPUS_PER_TASK", "1"))
    # the boot_id differs between machines, not between containers of one machine
    machines = Counter(tuple(line.split()) for line in done.stdout.splitlines())
    for machine, together in machines.items():
        if len(machine) == 2 and together > 1 and together * asked > int(machine[1]):
            every = "all nodes are" if together == nodes else f"{together} of the nodes are"
            return (
                f"no speed-up to be seen: {every} one machine with {machine[1]} CPUs, "
                "which their tasks take from each other"
            )
    return ""


def as_table(rows: list[dict[str, Any]]) -> str:
    """Returns the rows as a Markdown table."""
    lines = [list(COLUMNS), ["---:"] * len(COLUMNS)]
    lines += [[shown.format(**row) for shown in COLUMNS.values()] for row in rows]
    return "".join(f"| {' | '.join(line)} |\n" for line in lines)


def plot(rows: list[dict[str, Any]], path: Path, note: str = "") -> None:
    """Writes time, speed-up, loss and accuracy over the number of nodes, and the note below."""
    import matplotlib

    matplotlib.use("Agg")  # nodes have no display
    from matplotlib import pyplot

    nodes = [row["nodes"] for row in rows]
    figure, panels = pyplot.subplots(2, 2, figsize=(8, 6), sharex=True, layout="constrained")
    shown = {"seconds": "time (s)", "speed_up": "speed-up", "loss": "loss", "accuracy": "accuracy"}
    for panel, (key, title) in zip(panels.flat, shown.items()):
        panel.plot(nodes, [row[key] for row in rows], "o-", label="training")
        panel.set(title=title, xlabel="nodes", xticks=nodes)
        panel.grid(alpha=0.3)
    panels[0, 1].plot(nodes, [count / nodes[0] for count in nodes], "--", label="ideal")
    panels[1, 1].plot(nodes, [row["test_accuracy"] for row in rows], "s--", label="test")
    for panel in panels[:, 1]:
        panel.legend()
    for panel in panels.flat[:3]:  # after all lines, because it fixes the axis
        panel.set_ylim(bottom=0)
    if note:
        figure.supxlabel(note, fontsize="medium", color="firebrick")
    figure.savefig(path, dpi=120)


def main() -> None:
    """Measures each number of nodes, and writes the table after each."""
    parser = argparse.ArgumentParser(description=__doc__)
    available = int(os.environ.get("SLURM_JOB_NUM_NODES", "0"))
    every = list(range(1, available + 1))
    parser.add_argument("--nodes", type=int, nargs="+", default=every, metavar="N", help="(all)")
    parser.add_argument("--tasks-per-node", type=int, default=1)
    parser.add_argument("--output", type=Path, default=Path("scaling"), help="folder (scaling)")
    args, options = parser.parse_known_args()
    if not available:
        parser.error("SLURM_JOB_NUM_NODES is not set: start this in an allocation (scaling.sbatch)")
    if not all(count in every for count in args.nodes):
        parser.error(f"--nodes {args.nodes}, but the allocation has {available}")

    args.output.mkdir(parents=True, exist_ok=True)
    note = shared_machines(max(args.nodes), args.tasks_per_node)
    rows: list[dict[str, Any]] = []
    for count in args.nodes:
        print(f"--- nodes: {count}", flush=True)
        row = measure(count, args.tasks_per_node, options)
        rows.append({**row, "speed_up": (rows or [row])[0]["seconds"] / row["seconds"]})
        written = as_table(rows) + (f"\n{note}\n" if note else "")
        (args.output / "scaling.md").write_text(written, encoding="utf-8")
    print(written, end="")
    try:
        plot(rows, args.output / "scaling.png", note)
    except ImportError as error:
        print(f"no plot ({error}): pip install matplotlib", file=sys.stderr)


if __name__ == "__main__":
    main()
