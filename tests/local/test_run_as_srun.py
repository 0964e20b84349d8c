"""Compares the local launcher with the srun that it imitates: variables and exit status."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path

import pytest
from kinds import Strings, Texts
from local_run import captured, in_step, run_script
from slurm_cluster import SlurmCluster
from slurm_installation import Installation

import slurm_resolver as sr
from slurm_resolver.local import IMITATED_SLURM

pytestmark = pytest.mark.newest


@pytest.fixture(autouse=True)
def _is_imitated(installation: Installation) -> None:
    if installation.number < Installation(IMITATED_SLURM).number:
        pytest.skip(f"the launcher imitates Slurm {IMITATED_SLURM}")


@pytest.mark.parametrize(
    "script",
    ["exit $((3 + SLURM_PROCID))", "[ $SLURM_PROCID = 0 ] && kill -KILL $$; exit 3"],
)
def test_exit_status_is_the_real_sruns(real_slurm: SlurmCluster, script: str) -> None:
    assert (
        run_script("-n2 -K0", script).returncode
        == real_slurm.run(["srun", "-wn9", "-n2", "sh", "-c", script], status=None).returncode
    )


# Steps, by default of two tasks.
STEPS = [
    "-n3",
    "-n1 -t UNLIMITED",
    "--gpus=2",
    "-G3",
    "--gpus=0",
    "-n1 --gpus=4",
]

# These variables differ from step to step, or name the machine.
PLACES = {
    "SLURM_CLUSTER_NAME",
    "SLURM_JOBID",
    "SLURM_JOB_ID",
    "SLURM_JOB_NODELIST",
    "SLURM_NODELIST",
    "SLURM_JOB_PARTITION",
    "SLURM_SUBMIT_HOST",
    "SLURM_STEP_NODELIST",
    "SLURM_JOB_START_TIME",
    "SLURMD_NODENAME",
    "SLURM_TASK_PID",
}
# Only srun sets these: addresses of its daemons, the site, limits, and options that `run` lacks.
LEFT_OUT = {
    "SLURM_CONF",
    "SLURM_WORKING_CLUSTER",
    "SLURM_SRUN_COMM_HOST",
    "SLURM_SRUN_COMM_PORT",
    "SLURM_STEP_LAUNCHER_PORT",
    "SLURM_TOPOLOGY_ADDR",
    "SLURM_TOPOLOGY_ADDR_PATTERN",
    "SLURM_JOB_GROUP",
    "SLURM_JOB_SLUID",
    "SLURM_PRIO_PROCESS",
    "SLURM_UMASK",
    "SLURM_OOM_KILL_STEP",
    "SLURMD_DEBUG",
    "SLURM_LAUNCH_NODE_IPADDR",
    "SLURM_JOB_UID",
    "SLURM_JOB_GID",
}
OF_GPUS = {
    "CUDA_VISIBLE_DEVICES",
    "ROCR_VISIBLE_DEVICES",
    "GPU_DEVICE_ORDINAL",
}


def variables(folder: Path) -> list[Texts]:
    """Returns each task's variables by rank, with ports and times in a comparable form."""
    tasks = []
    for path in sorted(folder.iterdir()):
        entries = dict(entry.split("=", 1) for entry in path.read_text().split("\0") if entry)
        assert entries["SLURM_PROCID"] == path.name
        # This Slurm does not bind to CPUs. If no GPU is granted, a cgroup hides all of them.
        told = {k: v for k, v in entries.items() if re.match("SLURM(?!.*CPU_BIND|_RESOLVER)", k)}
        told.update((name, entries[name]) for name in OF_GPUS & set(entries) if entries[name])
        ports = sr.expand_hostlist(f"[{told['SLURM_STEP_RESV_PORTS']}]")
        told["SLURM_STEP_RESV_PORTS"] = f"{len(ports)} ports"
        seconds = int(told["SLURM_JOB_END_TIME"]) - int(told["SLURM_JOB_START_TIME"])
        told["SLURM_JOB_END_TIME"] = f"{seconds} s after the start"
        tasks.append({k: v for k, v in told.items() if k not in PLACES | LEFT_OUT})
    return tasks


def run_side_by_side(slurm: SlurmCluster, steps: Sequence[Strings]) -> None:
    """Runs one-node steps on all nodes at once, because running them in turn takes far longer."""
    nodes = [node.name for node in slurm.nodes]
    for first in range(0, len(steps), len(nodes)):
        running = [
            slurm.popen(["srun", "-w", node, *words]) for node, words in zip(nodes, steps[first:])
        ]
        for process in running:
            _, errors = process.communicate(timeout=180)
            assert process.returncode == 0, errors


def test_variables_are_the_real_sruns(real_slurm: SlurmCluster, tmp_path: Path) -> None:
    steps = []
    for number, text in enumerate(STEPS):
        options = f"-n2 -t5 {text}"
        save = f'env -0 > "{tmp_path}/$0-{number}/$SLURM_PROCID"'
        for who in ("ours", "theirs"):
            (tmp_path / f"{who}-{number}").mkdir()
        steps.append(
            [
                *options.split(),
                "sh",
                "-c",
                save,
                "theirs",
            ]
        )
        captured(in_step(options, "sh", "-c", save, "ours"), status=0)
    run_side_by_side(real_slurm, steps)
    for number, text in enumerate(STEPS):
        ours, theirs = (variables(tmp_path / f"{who}-{number}") for who in ("ours", "theirs"))
        assert ours == theirs, text
