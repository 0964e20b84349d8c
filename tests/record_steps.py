"""Records the variables of the tasks of steps at your site, in the format of data/steps.jsonl.

Give each command line a name. In a command line, `task` is the program that is recorded. You can
use it wherever a shell, srun or a batch file finds a program:

    python tests/record_steps.py mine.jsonl 'cyclic=srun -N2 --ntasks-per-node=2 -m cyclic task' \\
        'het=srun -n1 task : -N2 -n4 task'

The commands run in the current folder, which all nodes must see. A list of names selects the
variables: they describe where tasks run and which GPUs they have, but contain no tokens, users,
paths, addresses or times. The file does contain your commands and the names of nodes and switches.
If a command fails or a task of a step is missing, the script reports an error and writes nothing.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path
from typing import Any

from slurm_resolver.slurm.step_variables import VARIABLES

Task = dict[str, str]

# Variables of one process or one moment, which do not describe the layout of the step.
PASSING = {
    "SLURM_TASK_PID",
    "SLURM_JOB_END_TIME",
    "SLURM_RESOLVER_JOB",
    "SLURM_RESOLVER_GPUS",
}
# The name of a site's cluster is private.
KEPT = {*VARIABLES} - PASSING - {"SLURM_CLUSTER_NAME"}
KEPT |= {"SLURM_TOPOLOGY_ADDR", "SLURM_HOSTFILE"}
OF_COMPONENTS = re.compile(
    r"SLURM_(JOB_NODELIST|DISTRIBUTION|DIST_PLANESIZE)_(HET|PACK)_GROUP_\d+", re.ASCII
)
# The rename is atomic, so nobody reads an incomplete file.
PROGRAM = """\
#!/bin/sh
file=$(mktemp {folder}/XXXXXXXX) && env -0 > "$file" && mv "$file" "$file.task"
"""
LATE = 30.0  # seconds until a shared file system shows another node's files


def topology() -> str:
    """Returns the topology plugin's name, such as tree, or "default" if there is none."""
    found = re.search(
        r"^TopologyPlugin\s*=\s*(?:topology/)?(\w+)",
        subprocess.check_output(["scontrol", "show", "config"], text=True),
        re.M,
    )
    plain = ("none", "default", "flat")  # depends on the version
    return found[1] if found and found[1] not in plain else "default"


def seen(folder: Path) -> list[Task]:
    """Returns the tasks that have saved their variables so far, by job, step and rank."""
    tasks = []
    for path in folder.glob("*.task"):
        text = path.read_bytes().decode(errors="replace")
        environ = dict(entry.split("=", 1) for entry in text.split("\0") if entry)
        kept = [name for name in environ if name in KEPT or OF_COMPONENTS.fullmatch(name)]
        tasks.append({name: environ[name] for name in kept})
    names = ("SLURM_JOB_ID", "SLURM_STEP_ID", "SLURM_PROCID")
    return sorted(tasks, key=lambda task: [task.get(name, "").zfill(20) for name in names])


def are_complete(tasks: list[Task]) -> bool:
    """Returns whether there are tasks, and all tasks of their steps."""
    found = Counter(
        (
            task.get("SLURM_JOB_ID"),
            task.get("SLURM_STEP_ID"),
            int(task.get("SLURM_STEP_NUM_TASKS", "1")),  # one task if srun did not start it
        )
        for task in tasks
    )
    return bool(found) and all(number == step[2] for step, number in found.items())


def run(command: str) -> list[Task]:
    """Runs a command line, and returns the variables of every `task` in it."""
    with tempfile.TemporaryDirectory(prefix="record-", dir=".") as name:
        folder = Path(name).resolve()
        program = folder / "task"
        program.write_text(PROGRAM.format(folder=f"'{folder}'"))
        program.chmod(0o755)
        path = f"{folder}:{os.environ['PATH']}"  # srun and sbatch pass it on to the tasks
        subprocess.run(
            command,
            shell=True,
            env={**os.environ, "PATH": path},
            check=True,
        )
        if not are_complete(seen(folder)):
            time.sleep(LATE)
        tasks = seen(folder)
        if not are_complete(tasks):
            sys.exit(f"tasks are missing: {command}")
        return tasks


def record(scenario: str, command: str) -> dict[str, Any]:
    """Runs a command line, and returns its line for steps.jsonl."""
    tasks = run(command)
    files = {}
    for task in tasks:
        if "SLURM_HOSTFILE" in task:
            path = Path(task["SLURM_HOSTFILE"])
            files[path.name] = path.read_text(encoding="utf-8")
            task["SLURM_HOSTFILE"] = path.name
    same = set(tasks[0].items()).intersection(*(task.items() for task in tasks))
    # such as 26.05.3; distributions print another name before it
    version = subprocess.check_output(["srun", "--version"], text=True).split()[-1]
    return {
        "slurm": version,
        "topology": topology(),
        "scenario": scenario,
        "command": command,
        "files": files,
        "all": dict(same),
        "each": [dict(task.items() - same) for task in tasks],
    }


def main() -> None:
    """Records every command, and then appends all lines."""
    if len(sys.argv) < 3:
        sys.exit(__doc__)
    lines = []
    for argument in sys.argv[2:]:
        name, _, command = argument.partition("=")
        lines.append(
            json.dumps(
                record(name, command),
                sort_keys=True,
                separators=(",", ":"),
            )
        )
    with open(sys.argv[1], "a", encoding="utf-8") as file:
        file.write("\n".join(lines) + "\n")


if __name__ == "__main__":
    main()
