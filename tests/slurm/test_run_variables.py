"""The local launcher beside the real srun: the variables of its tasks.

On the version that it imitates all is equal; of older ones a table says what differs.
"""

from __future__ import annotations

import re
import shlex
import subprocess
import sys
from pathlib import Path
from typing import Dict, List, Optional, Tuple

import pytest
from by_version import expected
from side_by_side import run_side_by_side
from slurm_cluster import SlurmCluster

import slurm_resolver as sr

pytestmark = pytest.mark.slurm

# Steps of two tasks, unless they say otherwise.
STEPS = """\
-n3
-n1 -t UNLIMITED
-c2
-c1 -n1
-J digits
--gpus=2
-G3
--gpus=0
--gpus-per-task=2
--gpus-per-task=0
--gpus 2 --gpu-bind none
--gpus 2 --gpu-bind closest
--gpus 2 --gpu-bind single:1
--gpus 4 --gpu-bind single:2
--gpus 2 -n4 --gpu-bind single:2
--gpus 2 -n3 --gpu-bind single:1
--gpus 2 -n6 --gpu-bind single:2
--gpus-per-task 2 --gpu-bind single:1
--gpus-per-task 1 --gpu-bind none
--gpus-per-task 1 --gpu-bind closest
--gpus 4 --gpu-bind per_task:2
--gpus 4 --gpu-bind per_task:1
--gpus 4 --gpu-bind per_task:3
--gpus 2 -n4 --gpu-bind per_task:1
-n1 --gpus=4
-n1 --gpus 4 --gpu-bind none
-n1 --gpus 4 --gpu-bind closest
-n1 --gpus 4 --gpu-bind single:1
-n1 --gpus 4 --gpu-bind per_task:1
-n1 --gpus-per-task=4
-c2 --gpus 2
-c2 --gpus-per-task 1""".splitlines()

# Differ from step to step, or name the machine.
PLACES = {
    *(f"SLURM_{name}" for name in ("CLUSTER_NAME", "JOBID", "JOB_ID", "JOB_NODELIST", "NODELIST")),
    *(f"SLURM_{name}" for name in ("JOB_PARTITION", "LAUNCH_NODE_IPADDR", "SUBMIT_HOST")),
    *("SLURM_STEP_NODELIST", "SLURM_JOB_START_TIME", "SLURMD_NODENAME", "SLURM_TASK_PID"),
}
# Are srun's alone: how its daemons are reached, the site, limits, and what no option here says.
LEFT_OUT = {
    *(f"SLURM_{name}" for name in ("CONF", "WORKING_CLUSTER", "SRUN_COMM_HOST", "SRUN_COMM_PORT")),
    *(f"SLURM_{name}" for name in ("STEP_LAUNCHER_PORT", "TOPOLOGY_ADDR", "TOPOLOGY_ADDR_PATTERN")),
    *(f"SLURM_{name}" for name in ("JOB_GROUP", "JOB_SLUID", "PRIO_PROCESS", "UMASK")),
    *("SLURM_OOM_KILL_STEP", "SLURM_TRES_PER_TASK", "SLURMD_DEBUG"),
}
OF_GPUS = {"CUDA_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES", "ZE_AFFINITY_MASK", "GPU_DEVICE_ORDINAL"}
DEVICES = "|".join(sorted(OF_GPUS | {"SLURM_STEP_GPUS"}))

# By version, what its srun does otherwise than the imitated one: in which steps, to which
# variables (both searched for), what is replaced in their values, and by what. None: not set.
Otherwise = Tuple[str, str, str, Optional[str]]
ONLY_SEVERAL_TASKS_ARE_BOUND: List[Otherwise] = [
    ("-n1 .*--gpu", "SLURMD_TRES_BIND", "", None),
    ("-n1 --gpus 4 --gpu-bind", DEVICES, "^0$", "0,1,2,3"),
]
OTHERWISE: Dict[str, List[Otherwise]] = {
    "22.05": [
        *ONLY_SEVERAL_TASKS_ARE_BOUND,
        ("", "^SLURM_(GPUS|TRES_BIND|JOB_END_TIME)$", "", None),
        ("", "SLURMD_TRES_BIND", "gres/gpu", "gpu"),
        # of a single task it names the devices all the same
        ("^(?!-n1).*--gpu-bind none", DEVICES, "", None),
    ],
    "24.11": ONLY_SEVERAL_TASKS_ARE_BOUND,
    "26.05": [],
}
# What it sets besides, in some steps or to some ranks.
ADDED: Dict[str, Dict[str, Dict[str, str]]] = {
    "22.05": {
        "--gpus-per-task=0": {"SLURMD_TRES_BIND": "gpu:per_task:0"},
        "--gpus 2 -n6 --gpu-bind single:2, rank 5": dict.fromkeys(DEVICES.split("|"), "0"),
    },
    "24.11": {},
}

Variables = Dict[str, str]


def variables(folder: Path) -> List[Variables]:
    """Each task's variables, from files by rank; those that cannot be equal in a form that can."""
    tasks = []
    for path in sorted(folder.iterdir()):
        entries = dict(entry.split("=", 1) for entry in path.read_text().split("\0") if entry)
        assert entries["SLURM_PROCID"] == path.name
        # On this Slurm nothing binds to CPUs, and where no GPU is granted a cgroup hides all.
        told = {k: v for k, v in entries.items() if re.match("SLURM(?!.*CPU_BIND|_RESOLVER)", k)}
        told.update((name, entries[name]) for name in OF_GPUS & set(entries) if entries[name])
        ports = sr.expand_hostlist(f"[{told['SLURM_STEP_RESV_PORTS']}]")
        told["SLURM_STEP_RESV_PORTS"] = f"{len(ports)} ports"
        if "SLURM_JOB_END_TIME" in told:
            seconds = int(told["SLURM_JOB_END_TIME"]) - int(told["SLURM_JOB_START_TIME"])
            told["SLURM_JOB_END_TIME"] = f"{seconds} s after the start"
        tasks.append({k: v for k, v in told.items() if k not in PLACES | LEFT_OUT})
    return tasks


# One process for all steps, as Python takes longer to start than they do.
LOOP = """
import sys
from slurm_resolver.cli import main
for line in sys.stdin:
    assert main(["run", "-n2", "-t5", *line.rstrip("\\n").split("\\0"), "--", "env", "-0"]) == 0
"""


@pytest.fixture(scope="session")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where all steps are started."""
    return tmp_path_factory.mktemp("place")


@pytest.fixture(scope="session")
def ours(place: Path) -> Dict[str, List[Variables]]:
    """By step, the variables of each task that this launcher starts: once for all versions."""
    lines = []
    for number, text in enumerate(STEPS):
        (place / f"run-{number}").mkdir()
        lines.append("\0".join([*shlex.split(text), "-o", f"{place}/run-{number}/%t"]))
    command = [sys.executable, "-c", LOOP]
    done = subprocess.run(
        command, input="\n".join(lines), text=True, capture_output=True, cwd=place, timeout=120
    )
    assert done.returncode == 0, done.stderr
    return {text: variables(place / f"run-{number}") for number, text in enumerate(STEPS)}


def otherwise(task: Variables, step: str, differences: List[Otherwise]) -> Variables:
    """The variables of the imitated version, as another version sets them."""
    for steps, names, old, new in differences:
        if re.search(steps, step):
            found = [name for name in task if re.search(names, name)]
            changed = {} if new is None else {n: re.sub(old, new, task[n]) for n in found}
            task = {**{n: v for n, v in task.items() if n not in found}, **changed}
    return task


def test_variables_are_the_real_sruns(
    real_slurm: SlurmCluster, ours: Dict[str, List[Variables]], place: Path, tmp_path: Path
) -> None:
    version = real_slurm.installation
    steps = []
    for number, text in enumerate(STEPS):
        (tmp_path / str(number)).mkdir()
        words = ["-n2", "-t5", *shlex.split(text), "-o", f"{tmp_path}/{number}/%t"]
        words += ["-e", f"{tmp_path}/errors-%t"]  # Slurm tells there that GPUs are too few
        steps.append(([*words, "env", "-0"], place))
    for (number, text), (_, done) in zip(enumerate(STEPS), run_side_by_side(real_slurm, steps)):
        assert done.returncode == 0, (text, done.stderr)
        theirs = variables(tmp_path / str(number))
        differences = expected(OTHERWISE, version)
        added = expected(ADDED, version)
        for rank, (task, own) in enumerate(zip(theirs, ours[text])):
            same = {**otherwise(own, text, differences), **added.get(text, {})}
            assert task == {**same, **added.get(f"{text}, rank {rank}", {})}, (text, rank)
        assert len(theirs) == len(ours[text]), text
