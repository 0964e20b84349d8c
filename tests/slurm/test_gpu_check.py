"""What `slurm-resolver check` says of the GPUs on the real Slurm, fault by fault.

The GPUs are stand-ins, of which Slurm sets the variables; here it does not confine the tasks to
them, as in test_confined_gpus.py. So is their driver, in `stand_ins/pynvml.py`.
"""

from __future__ import annotations

import json
import shlex
import sys
from typing import Dict, Optional, Tuple

import pytest
from folders import HELPERS
from slurm_cluster import SlurmCluster

pytestmark = pytest.mark.slurm

CHECK = shlex.join([sys.executable, "-m", "slurm_resolver", "check", "--json"])
ALONE = "each used by one task; gradients go by NCCL"
TWICE = "gradients go by gRPC, slow: rank 0 shares GPU 0 with rank 1: start one task for each GPU"

# By step: the status, and the words of it.
CASES: Dict[str, Tuple[str, str]] = {
    "srun -w n8,n9 -N2 --ntasks-per-node=2 --gpus-per-node=4": ("ok", f"8, {ALONE}"),
    # by their variables alone are they kept apart, which NCCL minds as little as ours
    "srun -w n8,n9 -N2 --ntasks-per-node=2 --gpus-per-task=1": ("ok", f"4, {ALONE}"),
    "srun -w n8 -N1 -n2 --gpus=1": ("warning", TWICE),
    "srun -w n8 -N1 -n3 --gpus=1 CHECK --jobs ps=1,worker=-1": ("ok", "1, 1 of them shared by"),
}


def check(slurm: SlurmCluster, step: str, env: Optional[Dict[str, str]] = None) -> Tuple[str, str]:
    """Returns the status of the GPUs, and what is said."""
    step, _, arguments = step.partition(" CHECK ")
    done = slurm.run(f"{step} {CHECK} {arguments}", check=False, env=env)
    gpus = next(one for one in json.loads(done.stdout)["checks"] if one["id"] == "gpus")
    return gpus["status"], gpus["detail"]


@pytest.mark.parametrize("step", CASES)
def test_what_is_said_of_the_gpus(real_slurm: SlurmCluster, step: str) -> None:
    status, told = CASES[step]
    found = check(real_slurm, step)
    assert (found[0], told in found[1]) == (status, True), found


@pytest.mark.newest
@pytest.mark.parametrize("on_n9", [2, 1])
def test_a_gpu_that_is_lost(real_slurm: SlurmCluster, on_n9: int) -> None:
    numbers = json.dumps({"n8": 2, "n9": on_n9, "n10": 2})
    env = {"PYTHONPATH": str(HELPERS / "stand_ins"), "NVML_STAND_IN": numbers}
    status, detail = check(real_slurm, "srun -w n8,n9,n10 -N3 -n3 --gpus-per-node=2", env)
    if on_n9 == 2:
        assert (status, detail) == ("ok", f"6, {ALONE}")
    else:
        lost = "worker 1 (rank 1 on n9): the driver does not know 1 of the GPUs that Slurm shows: "
        assert (status, detail[: len(lost)]) == ("warning", lost)
