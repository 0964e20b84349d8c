"""A process is a task of a step, trains alone, or was started by an unsupported launcher."""

from __future__ import annotations

import functools
import json
import re
import shlex
import sys
from pathlib import Path

import pytest
from folders import HELPERS, helper
from slurm_cluster import SlurmCluster

pytestmark = pytest.mark.needs("mpirun.openmpi", "mpirun.mpich")

TASK = shlex.join([*helper("slurm_launched.py"), "out"])
LOCAL = shlex.quote('{"local": true}')
CLEAN = 'env -i PATH="$PATH"'
CONTAINER = "unshare --pid --fork --mount-proc"  # has its own process ids
SSH = HELPERS / "slurm_ssh.sh"  # imitates ssh to a test node, which passes no variables on
OPEN_MPI = f"mpirun.openmpi --allow-run-as-root --mca plm_rsh_agent {SSH} -np 4"
HYDRA = f"mpirun.mpich -launcher ssh -launcher-exec {SSH} -np 4"
ALLOCATED = "salloc -w n8,n9 -N2 --ntasks-per-node=2"

ALONE = "alone"
RIGHT = "right"

CLEANED = {  # commands that hide the tasks' variables, and the result in each task
    "one of two tasks": (f"srun -n2 {CLEAN} TASK", "Keep the variables SLURM_"),
    "under another program": (f"srun -n2 timeout 60 {CLEAN} TASK", "Keep the variables"),
    "switched off": (f"srun -n2 {CLEAN} SLURM_RESOLVER=off TASK", ALONE),
    "in a container that hides it": (
        f"srun -n1 {CONTAINER} {CLEAN} TASK",
        ALONE,
    ),
    "in a container that keeps them": (f"srun -n2 {CONTAINER} TASK", RIGHT),
    "a batch script": (f"sbatch -W -n2 --wrap '{CLEAN} TASK'", ALONE),
    "a login node": (f"{CLEAN} TASK", ALONE),
    "a run without Slurm": (
        f"srun -n1 {CLEAN} {sys.executable} -m slurm_resolver run -n2 TASK",
        RIGHT,
    ),
}

WITHOUT_SRUN = {
    "a batch script of one task": ("sbatch -W --wrap 'TASK'", ALONE),
    "a batch script of four": ("sbatch -W -n4 --wrap 'TASK'", "srun -n 4 python"),
    "salloc's shell for one task": ("salloc -n1 TASK", ALONE),
    "salloc's shell for four": ("salloc -n4 TASK", "srun -n 4 python"),
    "an exclusive node": ("salloc -N1 --exclusive TASK", ALONE),
    "switched off in a batch script": ("SLURM_RESOLVER=off sbatch -W -n4 --wrap 'TASK'", ALONE),
    "switched off in a step": ("SLURM_RESOLVER=off srun -n2 TASK", ALONE),
    "switched off by argument": (f"srun -n2 TASK {LOCAL}", ALONE),
    "switched off under mpirun": ("SLURM_RESOLVER=off mpirun.mpich -np 2 TASK", ALONE),
    "submitted from a step": ("srun -n1 bash -c 'sbatch -W -n1 --wrap \"TASK\"'", ALONE),
    "an invalid switch": (
        "SLURM_RESOLVER=no srun -n1 TASK",
        "SLURM_RESOLVER='no': expected on or off",
    ),
}

NESTED = {
    "mpirun of Open MPI": (f"{ALLOCATED} {OPEN_MPI} TASK", "without mpirun"),
    "mpirun of MPICH by srun": (f"{ALLOCATED} mpirun.mpich -np 4 TASK", "without mpirun"),
    "mpirun of MPICH by ssh": (f"{ALLOCATED} {HYDRA} TASK", "without mpirun"),
    "mpirun, in containers": (
        f"{ALLOCATED} {OPEN_MPI} {CONTAINER} TASK",
        "without mpirun",
    ),
    "mpirun, cleaned": (
        f"{ALLOCATED} {OPEN_MPI} {CLEAN} TASK",
        "not by srun",
    ),
    "mpirun on a login node": (f"{HYDRA} -hosts n8:2,n9:2 TASK", "without mpirun"),
    "mpirun in each task": ("srun -n2 mpirun.mpich -launcher fork -np 2 TASK", "without mpirun"),
    "srun below mpirun": ("salloc -n2 mpirun.mpich -launcher fork -np 1 srun -n2 TASK", RIGHT),
    "a launcher that is not known": (
        "salloc -n1 bash -c 'cp /bin/bash mpispawn; srun ./mpispawn -c \"TASK; true\"'",
        "started by mpispawn, not by srun",
    ),
}

COPIED = {  # the node and the command that use the variables of a task on n8, and the result
    "another node": ("n9", "USED", "SLURMD_NODENAME=n8, but this machine is called n9"),
    "another node, switched off": ("n9", "SLURM_RESOLVER=off USED", ALONE),
    "the same node": ("n8", "USED", RIGHT),
    "another step": (None, "srun -w n8 -n1 USED", "Slurm started this process in step"),
    "the host name is another": (
        None,
        "srun -n1 unshare --uts bash -c 'hostname x1; exec TASK'",
        RIGHT,
    ),
}


def judge(
    slurm: SlurmCluster, folder: Path, command: str, result: str, node: str | None = None
) -> None:
    command = re.sub(r"\bTASK\b", TASK, command)
    run = slurm.run if node is None else functools.partial(slurm.run_on, node)
    done = run(
        command,
        cwd=folder,
        status=None,
    )
    accounts = [json.loads(path.read_text()) for path in folder.glob("out/*")]
    log = done.stdout + done.stderr + "".join(p.read_text() for p in folder.glob("slurm-*.out"))
    assert accounts, log
    for account in accounts:
        if result in (ALONE, RIGHT):
            assert account["error"] is None
            assert bool(account["cluster"]["tasks"]) is (result == RIGHT)
        else:
            assert account["error"] is not None
            assert result in account["error"]
    if result == ALONE:
        assert "trains alone" in log


STARTED = [
    # Hydra's ssh enters the nodes, which only root can.
    pytest.param(
        command,
        result,
        id=name,
        marks=[pytest.mark.root] if HYDRA in command else [],
    )
    for name, (command, result) in {
        **CLEANED,
        **WITHOUT_SRUN,
        **NESTED,
    }.items()
]


@pytest.mark.parametrize(("command", "result"), STARTED)
def test_how_a_process_was_started(
    real_slurm: SlurmCluster, tmp_path: Path, command: str, result: str
) -> None:
    judge(real_slurm, tmp_path, command, result)


@pytest.mark.parametrize(("node", "command", "result"), COPIED.values(), ids=COPIED)
def test_copied_variables(
    real_slurm: SlurmCluster, tmp_path: Path, node: str | None, command: str, result: str
) -> None:
    real_slurm.run("srun -w n8 -n1 bash -c 'export -p > variables'", cwd=tmp_path)
    judge(
        real_slurm,
        tmp_path,
        command.replace("USED", "bash -c '. ./variables; exec TASK'"),
        result,
        node,
    )
