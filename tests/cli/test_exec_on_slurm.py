"""`slurm-resolver exec` starts unmodified programs in every kind of step."""

from __future__ import annotations

import shlex
from pathlib import Path

import pytest
from local_run import COMMAND
from slurm_cluster import SlurmCluster

EXEC = shlex.join([*COMMAND, "exec"])
JOBS = "--jobs ps=1,worker=-1"
TOLD = "echo {rank} {job} {index}"
FOUR = "-w n9,n10 -N2 --ntasks-per-node=2"
HET = "--jobs ps=2,worker=-1 --het-groups ps=0,worker=1 --wait 30"
MET = "--jobs ps=1,worker=-1 --het-groups ps=1 --wait 30"

# The command, which runs in a temporary folder, and its sorted output.
STEPS = {
    "multi-prog": (
        (
            f"printf '0 {EXEC} {JOBS} -- {TOLD}\n1-3 {EXEC} {JOBS} -- {TOLD} %%o\n' > programs; "
            f"srun {FOUR} --multi-prog programs"
        ),
        ["0 ps 0", "1 worker 0 0", "2 worker 1 1", "3 worker 2 2"],
    ),
    "a heterogeneous step": (
        f"srun -w n9 -n2 {EXEC} {HET} -- {TOLD} a : -w n10,n11 -N2 -n2 {EXEC} {HET} -- {TOLD} b",
        ["0 ps 0 a", "1 ps 1 a", "2 worker 0 b", "3 worker 1 b"],
    ),
    "a heterogeneous step whose layout no variable shows": (
        (
            f"salloc -w n12 : -w n10,n11 -N2 -n3 srun --het-group=0 {EXEC} {MET} -- {TOLD} : "
            f"--het-group=1 -m cyclic {EXEC} {MET} -- {TOLD}"
        ),
        ["0 worker 0", "1 ps 0", "2 worker 1", "3 worker 2"],
    ),
    "the variables of torch": (
        (
            "srun -w n9,n10 -N2 --ntasks-per-node=2 --gpus-per-node=2 -m cyclic "
            f"{EXEC} --env torch -- env NODE={{node}} sh -c "
            "'echo $RANK $LOCAL_RANK $GROUP_RANK $NODE $(hostname) $CUDA_VISIBLE_DEVICES'"
        ),
        ["0 0 0 n9 n9 0,1", "1 0 1 n10 n10 0,1", "2 1 0 n9 n9 0,1", "3 1 1 n10 n10 0,1"],
    ),
    "the variables of torch, where each task sees one GPU": (
        (
            f"srun -w n9 -N1 -n2 --gpus-per-task=1 {EXEC} --env torch -- "
            "sh -c 'echo $RANK $LOCAL_RANK $CUDA_VISIBLE_DEVICES'"
        ),
        ["0 0 0", "1 0 1"],
    ),
    "standard input": (
        f"seq 3 | srun -w n9 -n2 {EXEC} --wait 30 -- cat",
        ["1", "1", "2", "2", "3", "3"],
    ),
}


@pytest.mark.parametrize("name", STEPS)
def test_ways_to_start_it(real_slurm: SlurmCluster, tmp_path: Path, name: str) -> None:
    command, expected = STEPS[name]
    assert sorted(real_slurm.run(command, cwd=tmp_path).stdout.splitlines()) == expected


def test_nobody_starts_where_one_has_no_program(real_slurm: SlurmCluster, tmp_path: Path) -> None:
    """Otherwise the other programs would wait forever for the missing one."""
    script = f'[ "$SLURM_PROCID" != 2 ] || set -- no-such; {EXEC} --wait 12 -- "$@"'
    done = real_slurm.run(
        f"srun {FOUR} bash -c {shlex.quote(script)} - touch {tmp_path}/{{rank}}",
        status=2,
    )
    assert list(tmp_path.iterdir()) == []
    assert "'no-such' is not a program that can be started here" in done.stderr
    assert done.stderr.count("1 of 4 tasks did not reach") == 3
