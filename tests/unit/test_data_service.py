"""The dispatcher and the data workers of a tf.data service: ranks, ports, GPUs, cluster."""

from __future__ import annotations

from typing import Any, Dict, List, Mapping, Tuple

import pytest
from assigned_roles import layout_of, play

import slurm_resolver as sr
from slurm_resolver.cluster.options import ClusterOptions
from slurm_resolver.cluster.resolve import resolve_step
from slurm_resolver.slurm.step import SlurmStep

SERVICE = {"dispatcher": 1, "data_worker": 2}


@pytest.mark.parametrize(
    ("counts", "distribution", "jobs", "spread"),
    [
        # those who train are as many on each node, and worker 0 or the chief has rank 0
        ([2, 2, 1], "block", {"worker": 2, **SERVICE}, "w0 d0 w1 D0 d1"),
        ([3, 3], "cyclic", {"chief": 1, "worker": -1, **SERVICE}, "c0 w0 w1 d0 d1 D0"),
        # parameter servers are spread over what is left
        ([4, 4], "block", {"ps": 2, "worker": 3, **SERVICE}, "p0 w0 w1 d0 p1 w2 d1 D0"),
    ],
)  # fmt: skip
def test_where_they_run(
    counts: List[int], distribution: str, jobs: Dict[str, int], spread: str
) -> None:
    assert play(layout_of(counts, distribution), jobs, worker_order="rank") == spread


def task(rank: int, **more: str) -> Mapping[str, str]:
    """A task of a step on nodes n8 and n9 with three tasks each, and two GPUs each."""
    return {
        "SLURM_JOB_ID": "42",
        "SLURM_STEP_ID": "0",
        "SLURM_PROCID": str(rank),
        "SLURM_LOCALID": str(rank % 3),
        "SLURMD_NODENAME": f"n{8 + rank // 3}",
        "SLURM_NODEID": str(rank // 3),
        "SLURM_STEP_NUM_TASKS": "6",
        "SLURM_STEP_NUM_NODES": "2",
        "SLURM_STEP_NODELIST": "n[8-9]",
        "SLURM_STEP_TASKS_PER_NODE": "3(x2)",
        "SLURM_STEP_RESV_PORTS": "23001-23004",
        "CUDA_VISIBLE_DEVICES": "4,5",
        "SLURM_GPUS_ON_NODE": "2",
        **more,
    }


JOBS = {"worker": -1, "dispatcher": 1, "data_worker": 1}  # w0 w1 d0 on n8, w2 w3 D0 on n9


def test_what_all_tasks_compute_alike() -> None:
    clusters = [sr.resolve(JOBS, environ=task(rank)) for rank in range(6)]
    for cluster in clusters:
        assert cluster.tasks == clusters[0].tasks
        assert cluster.data_service == "grpc://n9:23003"
        workers = ["n8:23001", "n8:23002", "n9:23001", "n9:23002"]
        assert cluster.jobs() == {"worker": workers}
        assert cluster.tf_config()["cluster"] == {"worker": workers}
    own = [cluster.task for cluster in clusters]
    assert [(t.job, t.index, t.address) for t in own if t is not None and t.job != "worker"] == [
        ("data_worker", 0, "n8:23003"),
        ("dispatcher", 0, "n9:23003"),
    ]


@pytest.mark.parametrize("counts", [(None, None), (None, 1), (2, None)])
def test_they_take_no_gpu_from_those_who_train(counts: Tuple[Any, Any]) -> None:
    options = ClusterOptions(
        JOBS, layout="environment", gpus_per_node=counts[0], gpus_per_task=counts[1]
    )
    clusters = [resolve_step(SlurmStep.read(task(rank)), options) for rank in range(6)]
    assert [cluster.gpus for cluster in clusters] == [("4",), ("5",), ()] * 2
    for cluster in clusters:
        assert cluster.gpu_decision is not None
        hidden = cluster.gpu_decision.settings.get("CUDA_VISIBLE_DEVICES") == ""
        assert hidden == (cluster.gpus == ())
