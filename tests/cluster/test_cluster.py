"""The cluster that `resolve` returns, and the input that it refuses."""

from __future__ import annotations

import json
import logging
from typing import Any

import pytest
import task_variables
from captured import Patch
from recorded_steps import Recording, recordings, unknowable

import slurm_resolver as sr
from slurm_resolver.cluster import addresses

TASK = {
    **task_variables.TASK,
    "SLURM_LOCALID": "0",
    "SLURMD_NODENAME": "n10",
    "SLURM_DISTRIBUTION": "cyclic",
    "SLURM_GPUS_ON_NODE": "2",
}


def test_the_json_that_is_stable_from_the_first_release_on() -> None:
    cluster = sr.resolve({"ps": 1, "worker": -1}, environ=TASK)
    expected = {
        "job_id": "42",
        "step_id": "0",
        "distribution": "cyclic",
        "layout_source": "environment",
        "ports_source": "SLURM_STEP_RESV_PORTS",
        "self": {
            "rank": 1,
            "job": "worker",
            "index": 0,
            "gpus": ["4"],
            "gpus_source": "CUDA_VISIBLE_DEVICES split by SLURM_LOCALID",
        },
        "tasks": [
            {"rank": 0, "node": "n9", "local_rank": 0, "job": "ps", "index": 0,
             "address": "n9:23001"},
            {"rank": 1, "node": "n10", "local_rank": 0, "job": "worker", "index": 0,
             "address": "n10:23001"},
            {"rank": 2, "node": "n9", "local_rank": 1, "job": "worker", "index": 1,
             "address": "n9:23002"},
            {"rank": 3, "node": "n10", "local_rank": 1, "job": "worker", "index": 2,
             "address": "n10:23002"},
        ],
    }  # fmt: skip
    assert json.loads(json.dumps(cluster.to_dict())) == expected
    assert list(cluster.to_dict()) == list(expected)


PRINTED = """\
job step 42.0: 4 tasks on 2 nodes, cyclic distribution (from environment), ports from \
SLURM_STEP_RESV_PORTS
jobs: ps 1, worker 3
node  rank  local  task      address
n9       0      0  ps 0      n9:23001
         2      1  worker 1  n9:23002
n10      1      0  worker 0  n10:23001  (this task)
         3      1  worker 2  n10:23002
GPUs of this task: 4 (CUDA_VISIBLE_DEVICES split by SLURM_LOCALID)"""


def test_print_shows_the_cluster() -> None:
    assert str(sr.resolve({"ps": 1, "worker": -1}, environ=TASK)) == PRINTED
    assert str(sr.Cluster()) == "no cluster: this process trains alone"


def test_print_shows_the_first_nodes_of_a_large_cluster() -> None:
    large = {
        **TASK,
        "SLURM_STEP_NUM_TASKS": "10000",
        "SLURM_STEP_NODELIST": "n[9-5008]",
        "SLURM_STEP_TASKS_PER_NODE": "2(x5000)",
    }
    lines = str(sr.resolve(environ=large)).splitlines()
    assert lines[-3] == "      5049      1  worker 1087  n58:23002"
    assert lines[-2] == "… and 9900 more tasks: `slurm-resolver show` prints all"
    assert len(lines) == 2 + 1 + 100 + 1 + 1


def test_a_cluster_is_a_value() -> None:
    cluster = sr.resolve(environ=TASK)
    assert cluster
    assert not sr.Cluster()
    assert not hasattr(cluster, "__len__")
    cluster.jobs()["worker"].clear()
    assert cluster == sr.resolve(environ=TASK)
    assert cluster != sr.resolve(environ={**TASK, "SLURM_JOB_ID": "43"})


@pytest.mark.parametrize(
    ("node_address", "host"),
    [
        ("-ib0", "n9-ib0"),
        ({"n9": "10.0.0.9", "n10": "10.0.0.10"}, "10.0.0.9"),
        (lambda node: f"{node}.cluster", "n9.cluster"),
        (lambda node: f"fe80::{node[1:]}", "[fe80::9]"),
    ],
)
def test_node_address(node_address: Any, host: str) -> None:
    cluster = sr.resolve(node_address=node_address, environ=TASK)
    assert cluster.tasks[0].address == f"{host}:23001"
    assert cluster.tasks[0].node == "n9"


@pytest.mark.parametrize(
    ("node_address", "message"),
    [
        ({"n9": "a"}, "node_address gives None for node n10; expected the host"),
        (lambda node: None, "node_address gives None for node n9; expected the host"),
        (lambda node: "a b", "'a b'"),
        (lambda node: "same", "gives 'same' for node n10; expected .* a different one for every"),
    ],
)
def test_node_addresses_that_reach_nobody(node_address: Any, message: str) -> None:
    with pytest.raises(sr.AddressError, match=message):
        sr.resolve(node_address=node_address, environ=TASK)


@pytest.mark.parametrize("node_address", [None, "slurm"])
def test_slurms_addresses_are_advised_unless_they_are_used(
    node_address: str | None, monkeypatch: Patch
) -> None:
    slurms = {"n9": "10.0.0.9", "n10": "10.0.0.10"}
    monkeypatch.setattr(addresses, "_ask_slurm", lambda nodes, delay: slurms)
    service = sr.resolve(node_address=node_address, environ=TASK).service
    assert service is not None
    assert ("--node-address slurm" in service.remedy) == (node_address is None)


def test_without_slurm_there_is_an_empty_cluster_said_once(
    caplog: pytest.LogCaptureFixture,
) -> None:
    with caplog.at_level(logging.INFO):
        clusters = [sr.resolve(environ={}) for _ in range(2)]
    assert [record.message for record in caplog.records] == [
        "outside Slurm: this process trains alone, without a cluster"
    ]
    for cluster in clusters:
        assert (cluster.tasks, cluster.task, cluster.tf_config()) == ((), None, {})
        assert [name for name, value in cluster.to_dict().items() if value] == []


HEALTHY = [r for r in recordings() if r.is_step and unknowable(r) is None]


@pytest.mark.parametrize("recording", HEALTHY, ids=lambda recording: recording.name)
def test_all_tasks_of_a_recorded_step_agree(recording: Recording) -> None:
    num_tasks = len(recording.tasks)
    for jobs in [None, {"ps": num_tasks // 2, "worker": -1}]:
        clusters = [sr.resolve(jobs, environ=task) for task in recording.tasks]
        assert len({cluster.tasks for cluster in clusters}) == 1
        assert len({task.address for task in clusters[0].tasks}) == num_tasks
        for cluster in clusters:
            assert cluster.task is not None
            assert cluster.task == cluster.tasks[cluster.task.rank]


def test_tf_config_from_slurm() -> None:
    environ = {
        **TASK,
        "SLURM_STEP_NUM_TASKS": "2",
        "SLURM_STEP_TASKS_PER_NODE": "1(x2)",
    }
    assert sr.tf_config_from_slurm(1, environ=environ) == (
        {"ps": ["n9:2222"], "worker": ["n10:2222"]},
        "worker",
        0,
    )
    assert sr.tf_config_from_slurm(
        ps_number=2,
        port_number=4000,
        environ=environ,
    ) == (
        {"ps": ["n9:4000", "n10:4000"]},
        "ps",
        1,
    )
    with pytest.raises(sr.JobsError, match="'ps': -1"):
        sr.tf_config_from_slurm(-1, environ=environ)
    with pytest.raises(sr.NotInStepError, match="SLURM_RESOLVER=off"):
        sr.tf_config_from_slurm(1, environ={"SLURM_RESOLVER": "off"})
