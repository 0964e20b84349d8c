"""The variables by which programs of each framework learn of their cluster."""

from __future__ import annotations

from typing import Dict, List

import pytest
from task_variables import TASK

import slurm_resolver as sr
from slurm_resolver.cluster.contracts import Contract

ADDRESSES = "n9:23001,n9:23002,n10:23001,n10:23002"

# Of ranks 0 to 3, two on each of two nodes, what is set in ranks 1 and 2.
BOTH: Dict[str, List[Dict[str, str]]] = {
    "dtensor": [
        {
            "DTENSOR_JOBS": ADDRESSES,
            "DTENSOR_NUM_CLIENTS": "4",
            "DTENSOR_CLIENT_ID": rank,
            "DTENSOR_JOB_NAME": "worker",
        }
        for rank in "12"
    ],
    "keras-distribution": [
        {
            "KERAS_DISTRIBUTION_JOB_ADDRESSES": ADDRESSES,
            "KERAS_DISTRIBUTION_NUM_PROCESSES": "4",
            "KERAS_DISTRIBUTION_PROCESS_ID": rank,
        }
        for rank in "12"
    ],
    "keras-tuner": [
        {
            "KERASTUNER_TUNER_ID": tuner,
            "KERASTUNER_ORACLE_IP": "n9",
            "KERASTUNER_ORACLE_PORT": "23001",
        }
        for tuner in ("tuner0", "tuner1")
    ],
    "torch": [
        {
            "MASTER_ADDR": "n9",
            "MASTER_PORT": "23001",
            "RANK": rank,
            "WORLD_SIZE": "4",
            "LOCAL_RANK": local_rank,
            "LOCAL_WORLD_SIZE": "2",
            "GROUP_RANK": node,
            "NODE_RANK": node,
        }
        for rank, local_rank, node in (("1", "1", "0"), ("2", "0", "1"))
    ],
    "jax": [{"JAX_COORDINATOR_ADDRESS": "n9:23001", "JAX_LOCAL_DEVICE_IDS": "0"}] * 2,
}


@pytest.mark.parametrize("contract", BOTH)
def test_each_task_gets_its_own(contract: Contract) -> None:
    for rank, expected in zip((1, 2), BOTH[contract]):
        cluster = sr.resolve(environ={**TASK, "SLURM_PROCID": str(rank)})
        assert cluster.variables(contract) == expected


def test_the_chief_hands_out_the_trials() -> None:
    """It listens at every address of its node, as the node's name may be 127.0.1.1 there."""
    found = {}
    for rank in range(4):
        environ = {**TASK, "SLURM_PROCID": str(rank)}
        cluster = sr.resolve({"worker": -1, "chief": 1}, environ=environ)
        assert cluster.task is not None
        variables = cluster.variables("keras-tuner")
        assert variables["KERASTUNER_ORACLE_PORT"] == cluster.jobs()["chief"][0].rpartition(":")[2]
        own = f"{cluster.task.job} {cluster.task.index}"
        found[own] = f"{variables['KERASTUNER_TUNER_ID']} {variables['KERASTUNER_ORACLE_IP']}"
    host = cluster.jobs()["chief"][0].rpartition(":")[0]
    assert found["chief 0"] == "chief [::]"
    tuners = {own: told for own, told in found.items() if own != "chief 0"}
    assert set(tuners.values()) == {f"tuner{number} {host}" for number in range(3)}


# What a step of one task sets: its program trains alone, and waits for nobody.
ALONE = {
    "dtensor": set(),
    "keras-tuner": set(),
    "torch": {"WORLD_SIZE=1", "RANK=0", "LOCAL_RANK=0", "LOCAL_WORLD_SIZE=1", "MASTER_ADDR=n9"},
    "keras-distribution": {"KERAS_DISTRIBUTION_NUM_PROCESSES=1"},
}


@pytest.mark.parametrize("contract", ALONE)
def test_one_task(contract: Contract) -> None:
    one = {
        "SLURM_PROCID": "0",
        "SLURM_STEP_NUM_TASKS": "1",
        "SLURM_STEP_NODELIST": "n9",
        "SLURM_STEP_TASKS_PER_NODE": "1",
    }
    found = sr.resolve(environ={**TASK, **one}).variables(contract)
    told = {f"{name}={value}" for name, value in found.items()}
    assert ALONE[contract] <= told
    assert bool(told) == bool(ALONE[contract])
    assert sr.Cluster().variables(contract) == {}


def test_without_gpus_jax_is_told_of_none() -> None:
    environ = {name: value for name, value in TASK.items() if name != "CUDA_VISIBLE_DEVICES"}
    assert list(sr.resolve(environ=environ).variables("jax")) == ["JAX_COORDINATOR_ADDRESS"]


def test_an_unknown_contract() -> None:
    with pytest.raises(ValueError, match="'pytorch': expected one of tensorflow, dtensor, keras-"):
        sr.Cluster().variables("pytorch")  # type: ignore[arg-type]
