"""Child processes also get a layout that the tasks found by a rendezvous."""

from __future__ import annotations

import json
import shlex
import sys
from pathlib import Path

from slurm_cluster import SlurmCluster

# A task, its child, and a child started before the rendezvous. Each writes its cluster to a file.
PROGRAM = """
import json, os, subprocess, sys, time
from pathlib import Path
import slurm_resolver as sr

def tell(who):
    try:
        told = [dict(vars(task)) for task in sr.resolve().tasks]
    except sr.SlurmResolverError as error:
        told = f"{type(error).__name__}: {error}"
    Path(os.environ["TASK_OUTPUT"], f"{who}-{os.environ['SLURM_PROCID']}").write_text(
        json.dumps(told)
    )

if sys.argv[1:] == ["child"]:
    tell("child")
elif sys.argv[1:] == ["early"]:
    sys.stdin.readline()
    tell("early")
else:
    again = [sys.executable, __file__]
    early = subprocess.Popen([*again, "early"], stdin=subprocess.PIPE)
    tell("task")
    subprocess.run([*again, "child"], check=True)
    early.communicate(b"\\n")
    while len([*Path(os.environ["TASK_OUTPUT"]).glob("early-*")]) < 4:
        time.sleep(0.1)  # one of the tasks serves the children of the others
"""


def test_children_get_the_layout_that_was_told(
    real_slurm: SlurmCluster, tmp_path: Path, output: Path
) -> None:
    program = tmp_path / "program.py"
    program.write_text(PROGRAM)
    task = shlex.join([sys.executable, str(program)])
    real_slurm.run(
        f"srun -n4 -m arbitrary -w n10,n8,n10,n9 {task}",
        env={"TASK_OUTPUT": str(output)},
    )
    told = {path.name: json.loads(path.read_text()) for path in output.iterdir()}
    assert [task["node"] for task in told["task-0"]] == ["n10", "n8", "n10", "n9"]
    for rank in range(4):
        assert told[f"task-{rank}"] == told[f"child-{rank}"] == told["task-0"]
        # the early child did not get the layout
        assert told[f"early-{rank}"].startswith("LayoutError: ")
        assert f"rank {rank} is represented by process " in told[f"early-{rank}"]
