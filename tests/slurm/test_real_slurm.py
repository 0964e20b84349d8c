"""The resolved cluster on a real Slurm, against where the tasks really run."""

from __future__ import annotations

import json
import re
import shlex
import sys
from pathlib import Path
from typing import Dict, List, Tuple

import by_version
import pytest
from slurm_cluster import SlurmCluster
from task_accounts import TASK, accounts, assert_right, run, run_at_once

import slurm_resolver as sr

pytestmark = pytest.mark.slurm

LAYOUTS = {
    "default": "srun -N4 -n4 TASK",
    "default, uneven": "srun -N4 -n6 TASK",
    "default, one node": "srun -n3 TASK",
    "two a node": "srun -N2 --ntasks-per-node=2 TASK",
    "block": "srun -N3 -n7 -m block TASK",
    "cyclic": "srun -N3 -n7 -m cyclic TASK",
    "cyclic, even": "srun -N3 --ntasks-per-node=2 -m cyclic TASK",
    "block:cyclic": "srun -N3 -n7 -m block:cyclic TASK",
    "cyclic:block": "srun -N3 -n7 -m cyclic:block TASK",
    "*:cyclic": "srun -N3 -n7 -m '*:cyclic' TASK",
    "block,pack": "srun -N3 -n7 -m block,pack TASK",
    "nopack": "srun -N3 -n7 -m nopack TASK",
    "plane=1": "srun -N3 -n8 -m plane=1 TASK",
    "plane=2": "srun -N3 --ntasks-per-node=3 -m plane=2 TASK",
    "plane=3": "srun -N3 -n8 -m plane=3 TASK",
    "n8 to n12": "srun -w n8,n9,n10,n11,n12 -N5 -n10 TASK",
    "nodes that do not follow each other": "srun -w n8,n10,n12 -N3 -n5 TASK",
    "uneven counts of CPUs": "srun -w n9,n10 -n3 -c4 TASK",
    "overcommit, block": "srun -w n9,n10 -N2 -n20 -O -m block TASK",
    "overcommit, cyclic": "srun -w n9,n10 -N2 -n19 -O -m cyclic TASK",
    "a part of the allocation": "salloc -N3 --ntasks-per-node=2 srun -N2 -n3 -r1 TASK",
    "job variables kept": "salloc -N3 --ntasks-per-node=2 srun -E -N2 -n3 TASK",
    "one step of two at once": "salloc -N2 -n4 bash -c 'srun --exact -N2 -n2 sleep 0.2 & srun"
    " --overlap -N2 -n4 -m cyclic TASK; wait'",
    "multi-prog": "echo '* TASK' > multi.conf; srun -N2 -n4 -m cyclic --multi-prog multi.conf",
    "host file": "printf 'n11\\nn9\\nn11\\nn8\\n' > hosts; SLURM_HOSTFILE=$PWD/hosts srun -n4 TASK",
    "host file, relative": "printf 'n11,n9\\n# and\\nn11*2\\n' > hosts; SLURM_HOSTFILE=hosts"
    " srun -n4 -m arbitrary TASK",
    "heterogeneous": "salloc -N1 -n1 : -N2 -n3 srun --het-group=0,1 TASK",
    "heterogeneous, not in the order of the names": "salloc -N1 -n2 -w n12 : -N2 -n3 -w n8,n9 srun"
    " --het-group=0,1 TASK",
    "heterogeneous, a distribution each": "salloc -w n11,n12 -N2 -n4 -m cyclic : -w n8,n9 -N2 -n4"
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


HETEROGENEOUS = {
    "srun": "srun -w n11 -N1 -n1 TASK : -w n8,n9 -N2 -n3 TASK",
    "not in the order of the names": "salloc -w n12 -N1 -n2 : -w n8,n9 -N2 -n2 srun"
    " --het-group=0,1 TASK",
    "reversed": "salloc -n1 -w n12 : -N2 -n3 -w n8,n9 srun --het-group=1 TASK : --het-group=0 TASK",
}


@pytest.mark.parametrize("command", HETEROGENEOUS.values(), ids=HETEROGENEOUS)
def test_each_task_listens_at_a_port_that_is_reserved_on_its_node(
    real_slurm: SlurmCluster, command: str, output: Path
) -> None:
    """What is reserved where is Slurm's word: `scontrol show step` tells it of each component."""
    steps_file = output.parent / "steps"
    # rank 0 asks when all have resolved, and the others stay until it has
    script = f"""{TASK}
        if [ $SLURM_PROCID = 0 ]; then
            until [ $(ls {output} | wc -l) = 4 ]; do sleep 0.05; done
            scontrol --oneliner show step > {steps_file}.new; mv {steps_file}.new {steps_file}
        else
            until [ -e {steps_file} ]; do sleep 0.05; done
        fi"""
    lines = run(real_slurm, command.replace("TASK", f"bash -c {shlex.quote(script)}"), output)
    assert_right(lines)
    steps = steps_file.read_text()
    for task in lines[0]["cluster"]["tasks"]:
        reserved = [
            sr.expand_hostlist(f"[{ports}]")
            for nodes, ports in re.findall(r" NodeList=(\S+) .*ResvPorts=(\S+)", steps)
            if task["node"] in sr.expand_hostlist(nodes)
        ]
        assert len(reserved) == 1, steps
        assert task["address"].rpartition(":")[2] in reserved[0]


# Where the layout of a block step comes from: from 26.05 on topology may order it.
BLOCK_SOURCE = {"22.05": "environment", "26.05": "rendezvous"}

# By the version from which on it holds: why tasks cannot know, and how many of them see it.
UNKNOWABLE: Dict[str, Tuple[str, Dict[str, Tuple[str, int]]]] = {
    "an arbitrary list that is nowhere": (
        "srun -n4 -m arbitrary -w n10,n8,n10,n9 TASK!",
        {"22.05": ("neither SLURM_HOSTFILE nor SLURM_ARBITRARY_NODELIST is set", 4)},
    ),
    "an arbitrary list that Slurm sorts before 23.11": (
        "salloc -n3 -m arbitrary -w n10,n8,n9 srun -n3 -m arbitrary -w n10,n8,n9 TASK!",
        {"22.05": ("may have lost its order", 3), "23.11": ("", 0)},
    ),
    "a heterogeneous step in a plain allocation": (
        "salloc -w n8,n9,n10 -N3 --ntasks-per-node=4 srun -N1 -n1 -w n10 TASK! : -N2 -n3 TASK!",
        {"22.05": ("heterogeneous step (srun … : …) inside a plain allocation", 4)},
    ),
    "a component's own distribution, told to srun alone": (
        "salloc -wn8 : -N2 -n3 -wn9,n10 srun --het-group=0 TASK! : --het-group=1 -mcyclic TASK!",
        {
            # rank 0, alone on its node, sees nothing of it
            "22.05": ("its own --distribution from srun, which no variable tells", 3),
            "26.05": ("where topology may order the nodes for block distribution", 4),
        },
    ),
}


@pytest.mark.parametrize(("command", "reasons"), UNKNOWABLE.values(), ids=UNKNOWABLE)
def test_what_no_variable_tells_is_an_error_in_every_task_that_can_see_it(
    real_slurm: SlurmCluster, command: str, reasons: Dict[str, Tuple[str, int]], output: Path
) -> None:
    reason, seers = by_version.expected(reasons, real_slurm.installation)
    lines = run(real_slurm, command.replace("TASK!", "TASK --layout environment"), output)
    errors = [line["error"] for line in lines if line["error"] is not None]
    assert len(errors) == seers
    for error in errors:
        assert error.startswith("UnknownLayoutError: ")
        assert reason in error


@pytest.mark.parametrize(("command", "reasons"), UNKNOWABLE.values(), ids=UNKNOWABLE)
def test_what_no_variable_tells_the_tasks_tell_each_other(
    real_slurm: SlurmCluster, command: str, reasons: Dict[str, Tuple[str, int]], output: Path
) -> None:
    _, seers = by_version.expected(reasons, real_slurm.installation)
    lines = run(real_slurm, command.replace("TASK!", "TASK"), output)
    assert_right(lines)
    sources = {line["cluster"]["layout_source"] for line in lines}
    assert sources == {"rendezvous" if seers else "environment"}


DERIVED = "SLURM_JOB_ID and SLURM_STEP_ID"  # where ports come from

# Inside a plain allocation of n8 to n10: the options of each component; and how many tasks are
# where the variables would place them.
COMPONENTS = {
    "each task fits": ["-w n8 -N1 -n2", "-w n9,n10 -N2 -n3"],
    "some fit": ["-w n8 -N1 -n1", "-w n9,n10 -N2 -n4 -m cyclic"],
    "the middle one fits": ["-w n10 -N1 -n1", "-w n9 -N1 -n1", "-w n8 -N1 -n1"],
    "none fits": ["-w n10 -N1 -n1", "-w n8,n9 -N2 -n3"],
    "reversed": ["-w n9,n10 -N2 -n3", "-w n8 -N1 -n2"],
}


@pytest.mark.parametrize("layout", ["auto", "environment"])
@pytest.mark.parametrize("components", COMPONENTS.values(), ids=COMPONENTS)
def test_a_heterogeneous_step_in_a_plain_allocation_is_known_to_all_tasks_alike(
    real_slurm: SlurmCluster, components: List[str], layout: str, output: Path
) -> None:
    step = " : ".join(f"{options} TASK --layout {layout}" for options in components)
    lines = run(real_slurm, f"salloc -w n8,n9,n10 -N3 --ntasks-per-node=4 srun {step}", output)
    if layout == "environment":
        assert all("inside a plain allocation" in str(line["error"]) for line in lines)
    else:
        assert_right(lines)
        assert {line["cluster"]["layout_source"] for line in lines} == {"rendezvous"}
        # Which of the reserved ports are whose is not known.
        assert {line["cluster"]["ports_source"] for line in lines} == {DERIVED}


def test_a_plain_step_in_a_plain_allocation_need_not_meet(
    real_slurm: SlurmCluster, output: Path
) -> None:
    lines = run(real_slurm, "salloc -N3 --ntasks-per-node=4 srun -N3 -n4 TASK", output)
    source = by_version.expected(BLOCK_SOURCE, real_slurm.installation)
    assert {line["cluster"]["layout_source"] for line in lines} == {source}


@pytest.mark.parametrize(
    "name", ["cyclic", "plane=3", "heterogeneous, not in the order of the names"]
)
def test_a_meeting_that_is_asked_for_finds_what_the_variables_say(
    real_slurm: SlurmCluster, name: str, output: Path
) -> None:
    command = LAYOUTS[name].replace("TASK", "TASK --layout rendezvous")
    lines = run(real_slurm, command, output)
    assert_right(lines)
    assert {line["cluster"]["layout_source"] for line in lines} == {"rendezvous"}


def test_jobs_are_taken_from_components_that_have_met(
    real_slurm: SlurmCluster, tmp_path: Path
) -> None:
    """Without a distribution of its own, a batch job's component has no variable that tells it."""
    show = f"{sys.executable} -m slurm_resolver show --json --jobs ps=1,worker=-1"
    batch_file = tmp_path / "job.sbatch"
    batch_file.write_text(
        "#!/bin/bash\n#SBATCH -w n11,n12 --ntasks-per-node=2\n#SBATCH hetjob\n#SBATCH -w n10 -n2\n"
        # from 25.11 on, %t counts in each component
        f"srun --het-group=0,1 --output={tmp_path}/%N-%t {show} --het-groups ps=1\n"
    )
    real_slurm.run(f"sbatch --wait --output={tmp_path}/log {batch_file}", check=False)
    batch_file.unlink()
    log = (tmp_path / "log").read_text()
    (tmp_path / "log").unlink()
    assert log == ""
    clusters = [json.loads(path.read_text()) for path in tmp_path.iterdir()]
    assert len(clusters) == 6
    for cluster in clusters:
        jobs = [(task["job"], task["node"]) for task in cluster["tasks"]]
        assert jobs[:4] == [("worker", node) for node in ("n11", "n11", "n12", "n12")]


@pytest.mark.parametrize("source", ["SLURM_STEP_RESV_PORTS", DERIVED])
def test_two_jobs_on_the_same_nodes_at_once(
    real_slurm: SlurmCluster, tmp_path: Path, output: Path, source: str
) -> None:
    """All tasks of both listen at the same time, and every address answers with its own rank."""
    option = "" if source == "SLURM_STEP_RESV_PORTS" else "--unset SLURM_STEP_RESV_PORTS"
    task = f"{TASK} {option} --meet {tmp_path} 8"
    commands = [
        f"srun -w n8,n9 -N2 --ntasks-per-node=2 -m {distribution} {task}"
        for distribution in ("block", "cyclic")
    ]
    for lines in run_at_once(real_slurm, commands, output):
        assert {line["cluster"]["ports_source"] for line in lines} == {source}


def test_two_steps_of_one_job_at_once(
    real_slurm: SlurmCluster, tmp_path: Path, output: Path
) -> None:
    step = f"srun --overlap -N2 -n4 TASK --unset SLURM_STEP_RESV_PORTS --meet {tmp_path} 8"
    lines = run(
        real_slurm,
        f"salloc -w n8,n9 -N2 -n4 bash -c {shlex.quote(f'{step} & {step}; wait')}",
        output,
    )
    steps = {line["cluster"]["step_id"] for line in lines}
    assert len(steps) == 2
    for step_id in steps:
        assert_right(accounts(output, step_id=step_id))


def test_a_step_of_jobs_and_its_addresses(
    real_slurm: SlurmCluster, tmp_path: Path, output: Path
) -> None:
    jobs = json.dumps({"chief": 1, "ps": 2, "worker": -1, "evaluator": 1})
    step = f"srun -w n8,n9,n10 -N3 --ntasks-per-node=2 TASK --jobs '{jobs}' --meet {tmp_path} 6"
    lines = run(real_slurm, step, output)
    assert_right(lines)
    tasks = lines[0]["cluster"]["tasks"]
    assert [f"{task['job']} {task['index']}" for task in tasks] == [
        "chief 0",
        "evaluator 0",
        "ps 0",
        "worker 0",
        "ps 1",
        "worker 1",
    ]
    for line in lines:
        assert [answer.split(":")[1] for answer in line["answers"]] == list("012345")


@pytest.mark.parametrize(
    "command",
    [
        "salloc -N2 -n4 {}",
        "printf '#!/bin/bash\\n{}\\n' > job; sbatch -W -N2 -n4 -o out job >&2; cat out",
    ],
    ids=["salloc", "sbatch"],
)
def test_an_allocation_without_srun_is_told_the_srun_command(
    real_slurm: SlurmCluster, tmp_path: Path, command: str
) -> None:
    show = shlex.join([sys.executable, "-m", "slurm_resolver", "show"])
    done = real_slurm.run(command.replace("{}", f"{show} 2>&1"), cwd=tmp_path, check=False)
    assert "srun -n 4 python your_script.py" in done.stdout


def test_show_prints_the_cluster_of_each_task(real_slurm: SlurmCluster) -> None:
    show = shlex.join([sys.executable, "-m", "slurm_resolver", "show", "--jobs", "ps=1,worker=-1"])
    output = real_slurm.run(
        f"srun -w n9,n10 -N2 --ntasks-per-node=2 -m cyclic {show} --json"
    ).stdout
    shown = sorted(map(json.loads, output.splitlines()), key=lambda line: int(line["self"]["rank"]))
    assert [cluster["self"]["job"] for cluster in shown] == ["ps", "worker", "worker", "worker"]
    assert [task["node"] for task in shown[0]["tasks"]] == ["n9", "n10", "n9", "n10"]
    text = real_slurm.run(f"srun -w n9,n10 -N2 -n2 {show}").stdout
    source = by_version.expected(BLOCK_SOURCE, real_slurm.installation)
    assert f"2 tasks on 2 nodes, block distribution (from {source})" in text
    assert "n10:23" in text


def test_a_variable_of_another_step_is_found_out(real_slurm: SlurmCluster, output: Path) -> None:
    lines = run(
        real_slurm,
        "srun -wn8,n9 -n2 -m cyclic "
        "bash -c 'SLURM_STEP_NODELIST=n9,n8 exec TASK --layout environment'",
        output,
    )
    for line in lines:
        assert line["error"].startswith("UnknownLayoutError: ")
        assert f"SLURMD_NODENAME={line['host']}" in line["error"]
