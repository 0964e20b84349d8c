"""Compares the resolved cluster with the real nodes of the tasks on a real Slurm."""

from __future__ import annotations

import json
import shlex
import sys
from pathlib import Path

import by_version
import pytest
from slurm_cluster import SlurmCluster
from task_accounts import TASK, assert_right, run, run_at_once

LAYOUTS = {
    "default": "srun -N4 -n4 TASK",
    "default, uneven": "srun -N4 -n6 TASK",
    "block": "srun -N3 -n7 -m block TASK",
    "cyclic": "srun -N3 -n7 -m cyclic TASK",
    "plane=3": "srun -N3 -n8 -m plane=3 TASK",
    "nodes with gaps in their numbers": "srun -w n8,n10,n12 -N3 -n5 TASK",
    "overcommit, block": "srun -w n9,n10 -N2 -n20 -O -m block TASK",
    "a part of the allocation": "salloc -N3 --ntasks-per-node=2 srun -N2 -n3 -r1 TASK",
    "job variables kept": "salloc -N3 --ntasks-per-node=2 srun -E -N2 -n3 TASK",
    "one step of two at once": "salloc -N2 -n4 bash -c 'srun --exact -N2 -n2 sleep 0.2 & srun"
    " --overlap -N2 -n4 -m cyclic TASK; wait'",
    "multi-prog": "echo '* TASK' > multi.conf; srun -N2 -n4 -m cyclic --multi-prog multi.conf",
    "heterogeneous, not in the order of the names": "salloc -N1 -n2 -w n12 : -N2 -n3 -w n8,n9 srun"
    " --het-group=0,1 TASK",
    "heterogeneous, two distributions": "salloc -w n11,n12 -N2 -n4 -m cyclic : -w n8,n9 -N2 -n4"
    " srun --het-group=0,1 TASK",
    "heterogeneous, without an allocation": "srun -N1 -n1 -w n11 TASK : -N2 -n3 -w n8,n9 TASK",
    "heterogeneous, components reversed": "salloc -n1 -w n12 : -N2 -n3 -w n8,n9 srun --het-group=1"
    " TASK : --het-group=0 TASK",
    "heterogeneous, some of the components": "salloc -n1 -w n12 : -n1 -w n11 : -N2 -n3 -w n8,n9"
    " srun --het-group=0,2 TASK",
    "heterogeneous, one component": "salloc -n1 -w n12 : -N2 -n3 -w n8,n9 srun --het-group=1 TASK",
    "a batch job": "printf '#!/bin/bash\\nsrun -m cyclic TASK\\n' > job; sbatch -W -N2 -n5 job",
}


@pytest.mark.parametrize("command", LAYOUTS.values(), ids=LAYOUTS)
def test_every_task_knows_where_all_tasks_run(
    real_slurm: SlurmCluster, command: str, output: Path
) -> None:
    assert_right(run(real_slurm, command, output))


# The command; from each version on, why tasks cannot know the layout, and how many tasks notice.
UNKNOWABLE: dict[str, tuple[str, dict[str, tuple[str, int]]]] = {
    "a list of hosts": (
        "srun -n4 -m arbitrary -w n10,n8,n10,n9 TASK!",
        {"22.05": ("SLURM_DISTRIBUTION=arbitrary", 4)},
    ),
    "a host file": (
        "printf 'n11\\nn9\\nn11\\nn8\\n' > hosts; SLURM_HOSTFILE=$PWD/hosts srun -n4 TASK!",
        {"22.05": ("SLURM_DISTRIBUTION=arbitrary", 4)},
    ),
    "a heterogeneous step in a plain allocation": (
        "salloc -w n8,n9,n10 -N3 --ntasks-per-node=4 srun -N1 -n1 -w n10 TASK! : -N2 -n3 TASK!",
        {"22.05": ("heterogeneous step (srun … : …) inside a plain allocation", 4)},
    ),
    "a component's distribution that only srun knows": (
        "salloc -wn8 : -N2 -n3 -wn9,n10 srun --het-group=0 TASK! : --het-group=1 -mcyclic TASK!",
        {
            # rank 0 is alone on its node and does not notice
            "22.05": ("its own --distribution from srun, which no variable shows", 3),
            "26.05": ("where topology may order the nodes for block distribution", 4),
        },
    ),
}


@pytest.mark.parametrize("name", UNKNOWABLE)
def test_what_no_variable_tells_is_an_error_in_every_task_that_can_see_it(
    real_slurm: SlurmCluster, name: str, output: Path
) -> None:
    command, reasons = UNKNOWABLE[name]
    reason, seers = by_version.expected(reasons, real_slurm.installation)
    lines = run(real_slurm, command.replace("TASK!", "TASK --layout environment"), output)
    errors = [line["error"] for line in lines if line["error"] is not None]
    assert len(errors) == seers
    for error in errors:
        assert error.startswith("UnknownLayoutError: ")
        assert reason in error


@pytest.mark.parametrize("name", UNKNOWABLE)
def test_what_no_variable_tells_the_tasks_tell_each_other(
    real_slurm: SlurmCluster, name: str, output: Path
) -> None:
    command, _ = UNKNOWABLE[name]
    lines = run(real_slurm, command.replace("TASK!", "TASK"), output)
    assert_right(lines)
    assert {line["cluster"]["layout_source"] for line in lines} == {"rendezvous"}


DERIVED = "SLURM_JOB_ID and SLURM_STEP_ID"  # a source of ports


@pytest.mark.parametrize("source", ["SLURM_STEP_RESV_PORTS", DERIVED])
def test_two_jobs_on_the_same_nodes_at_once(
    real_slurm: SlurmCluster, tmp_path: Path, output: Path, source: str
) -> None:
    """All tasks of both jobs listen at the same time, and every address answers with its rank."""
    option = "" if source == "SLURM_STEP_RESV_PORTS" else "--unset SLURM_STEP_RESV_PORTS"
    task = f"{TASK} {option} --meet {tmp_path} 8"
    for lines in run_at_once(
        real_slurm,
        [
            f"srun -w n8,n9 -N2 --ntasks-per-node=2 -m {distribution} {task}"
            for distribution in ("block", "cyclic")
        ],
        output,
    ):
        assert {line["cluster"]["ports_source"] for line in lines} == {source}


# A task, its child, and a child started before the rendezvous. Each writes its cluster to a file.
PARENT = """
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
    program.write_text(PARENT)
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
        assert told[f"early-{rank}"].startswith("RefusedError: ")
        assert f"rank {rank} is represented by process " in told[f"early-{rank}"]
