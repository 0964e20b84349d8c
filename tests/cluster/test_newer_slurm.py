"""Every task resolves the true cluster with the features of newer versions of Slurm."""

from __future__ import annotations

import shlex
from pathlib import Path

from by_version import expected
from local_run import COMMAND
from slurm_cluster import SlurmCluster
from slurm_conf import numbered
from slurm_fixture import slurm_of
from slurm_installation import Installation
from task_accounts import assert_right, run

# Without a command, salloc runs its shell as a separate step on the job's first node.
INTERACTIVE = [
    "LaunchParameters=use_interactive_step",
    'InteractiveStepOptions="--interactive --preserve-env bash"',
]
# A job may have a manager for its steps on its first node.
STEP_MANAGER = ["SlurmctldParameters=enable_stepmgr", "PrologFlags=contain"]
CONF = {"22.05": INTERACTIVE, "24.05": [*INTERACTIVE, *STEP_MANAGER]}

PORTS = "SLURM_STEP_RESV_PORTS"
DERIVED = "SLURM_JOB_ID and SLURM_STEP_ID"
AT_ONCE = (
    "salloc --stepmgr --resv-ports=9 -N2 -n4 bash -c 'srun STEP sleep 1 & srun STEP TASK; wait'"
)
# For each feature: the command, the number of tasks, and the source of their ports.
SINCE_22_05 = {
    "the shell on the node": ("salloc -Q -N2 -n4 <<< 'srun TASK'", 4, PORTS),
    "the shell on the node, a part": (
        "salloc -Q -N3 --ntasks-per-node=2 <<< 'srun -N2 -n3 -r1 TASK'",
        3,
        PORTS,
    ),
}
SINCE_23_11 = {
    **SINCE_22_05,
    # starts one task per node for another launcher, and reserves no ports
    "external launcher": ("srun -N2 -n4 --external-launcher TASK", 2, DERIVED),
}
SINCE_24_05 = {
    **SINCE_23_11,
    "step manager": ("salloc --stepmgr -N2 -n4 srun TASK", 4, PORTS),
    "step manager, two": (AT_ONCE.replace("STEP", "--overlap -n4"), 4, PORTS),
    "ports of the job": ("salloc --resv-ports=5 -N2 -n4 srun TASK", 4, PORTS),
    "too few ports of the job": (
        "salloc --resv-ports=3 -w n8,n9 -N2 -n4 srun --resv-ports=2 -N2 -n4 TASK",
        4,
        DERIVED,
    ),
}
STEPS = {
    "22.05": SINCE_22_05,
    "23.11": SINCE_23_11,
    "24.05": SINCE_24_05,
}


# A cluster with the new features of this version.
newer = slurm_of(numbered(8, 10), CONF)


def test_every_task_knows_the_true_cluster(
    newer: SlurmCluster, installation: Installation, tmp_path: Path
) -> None:
    for number, (command, tasks, source) in enumerate(expected(STEPS, installation).values()):
        output = tmp_path / str(number) / "output"
        output.mkdir(parents=True)
        lines = run(newer, command, output, timeout=45)
        assert_right(lines)
        assert len(lines) == tasks
        assert {line["cluster"]["ports_source"] for line in lines} == {source}, command


SHELLS = {
    "-w n8 -n4": "srun -n 4 python your_script.py",
    "-w n8,n9 -N2 --ntasks-per-node=1": "srun -n 2 python your_script.py",
    "-w n8 -n1": "this process trains alone",
}


def test_the_shell_of_salloc_is_no_task_where_it_runs_as_a_step(newer: SlurmCluster) -> None:
    """The shell has the variables of a task, and the step id -6 or its unsigned form."""
    show = shlex.join([*COMMAND, "show"])
    for options, told in SHELLS.items():
        done = newer.run(f"salloc -Q {options} <<< 'hostname; {show}'", status=None)
        assert done.stdout == "n8\n"
        assert told in done.stderr
