"""`check --collective`: its warnings, and its measurements in every task."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

import pytest
from local_run import captured, in_step

from slurm_resolver.tf.collective_check import find_warnings, nccl_network


@pytest.mark.parametrize(
    ("steps", "unused", "warnings"),
    [
        ([10, 11, 9], [], []),
        ([10, 30, 10], [], ["worker 1 computes 3.0 times"]),
        ([10], ["mlx"], ["NCCL uses sockets in worker 0, though its node has mlx"]),
    ],
)
def test_what_it_warns_of(
    steps: Sequence[float],
    unused: Sequence[str],
    warnings: Sequence[str],
) -> None:
    rows = [
        {
            "rank": rank,
            "step_ms": step,
            "unused": unused,
        }
        for rank, step in enumerate(steps)
    ]
    texts = find_warnings(rows, lambda rank: f"worker {rank}")
    assert len(texts) == len(warnings)
    assert all(text.startswith(warning) for text, warning in zip(texts, warnings))


@pytest.mark.parametrize(
    ("log", "network"),
    [
        ("n1:7:8 [0] NCCL INFO Using network Socket\n", "Socket"),
        ("n1:7:8 [0] NCCL INFO Using network AWS Libfabric\n", "AWS Libfabric"),
        ("n1:7:8 [0] NCCL INFO Channel 00/0 : 0[0] -> 1[0] [send] via NET/IB/0\n", "IB"),
        ("", ""),
    ],
)
def test_the_network_that_nccl_names(tmp_path: Path, log: str, network: str) -> None:
    (tmp_path / "nccl.n1.7").write_text(log)
    assert nccl_network(str(tmp_path / "nccl")) == network


def test_every_worker_measures() -> None:
    """The evaluator, rank 0, does not."""
    check = ["slurm-resolver", "check", "--collective", "--json"]
    done = captured(in_step("-n 3", *check, "--jobs", "evaluator=1,worker=-1"))
    assert done.returncode in (0, 1), done.stderr  # a busy machine may slow a task down
    (shown,) = [line for line in done.stdout.splitlines() if '"step_ms"' in line]
    rank, _, text = shown.partition(": ")
    assert rank == "1"
    measured = json.loads(text)
    assert [task["rank"] for task in measured["tasks"]] == [1, 2]
    for task in measured["tasks"]:
        assert task["device"] == "CPU"
        assert task["step_ms"] > 0
        assert task["all_reduce_ms"] > 0
