"""The variables that describe the cluster to programs of each framework."""

from __future__ import annotations

import pytest
from kinds import Texts
from task_variables import ALONE, TASK

import slurm_resolver as sr
from slurm_resolver.cluster.frameworks import Contract

ADDRESSES = "n9:23001,n9:23002,n10:23001,n10:23002"

# The variables of rank 2, in a step of four ranks on two nodes.
THIRD: dict[str, Texts] = {
    "keras-distribution": {
        "KERAS_DISTRIBUTION_JOB_ADDRESSES": ADDRESSES,
        "KERAS_DISTRIBUTION_NUM_PROCESSES": "4",
        "KERAS_DISTRIBUTION_PROCESS_ID": "2",
        "JAX_LOCAL_DEVICE_IDS": "0",
    },
    "torch": {
        "MASTER_ADDR": "n9",
        "MASTER_PORT": "23001",
        "RANK": "2",
        "WORLD_SIZE": "4",
        "LOCAL_RANK": "0",
        "LOCAL_WORLD_SIZE": "2",
        "GROUP_RANK": "1",
        "NODE_RANK": "1",
    },
    "jax": {"JAX_COORDINATOR_ADDRESS": "n9:23001", "JAX_LOCAL_DEVICE_IDS": "0"},
}


@pytest.mark.parametrize("contract", THIRD)
def test_each_task_gets_its_own(contract: Contract) -> None:
    assert sr.resolve(environ={**TASK, "SLURM_PROCID": "2"}).variables(contract) == THIRD[contract]


# What a step of one task sets: its program trains alone, and waits for nobody.
OF_ONE_TASK = {
    "torch": {"WORLD_SIZE=1", "RANK=0", "LOCAL_RANK=0", "LOCAL_WORLD_SIZE=1", "MASTER_ADDR=n9"},
    "keras-distribution": {"KERAS_DISTRIBUTION_NUM_PROCESSES=1"},
}


@pytest.mark.parametrize("contract", OF_ONE_TASK)
def test_one_task(contract: Contract) -> None:
    found = sr.resolve(environ=ALONE).variables(contract)
    assert OF_ONE_TASK[contract] <= {f"{name}={value}" for name, value in found.items()}
    assert sr.Cluster().variables(contract) == {}


def test_an_unknown_contract() -> None:
    with pytest.raises(ValueError, match="'pytorch': expected one of tensorflow, keras-"):
        sr.Cluster().variables("pytorch")  # type: ignore[arg-type]
