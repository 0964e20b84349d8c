"""Which process trains alone, which is a task, and of which neither can be said."""

from __future__ import annotations

import socket
from typing import Any, Dict, Optional

import pytest

from slurm_resolver.cluster import alone
from slurm_resolver.cluster.alone import is_this_machine, why_alone
from slurm_resolver.cluster.options import ClusterOptions
from slurm_resolver.errors import EnvironmentValueError, NotInStepError
from slurm_resolver.slurm.ancestors import Ancestors
from slurm_resolver.slurm.step import SlurmStep

TASK: Dict[str, Any] = {
    "rank": 0,
    "job_id": "7",
    "step_id": "0",
    "nodes": ("n9", "n10"),
    "node_name": "n9",
    "task_pid": "100",
}
BATCH: Dict[str, Any] = {"rank": 0, "job_id": "7", "job_num_nodes": "1", "task_pid": "100"}
IN_STEP = Ancestors(under_slurmstepd=True, complete=True, job_id="7", step_id="0")
IN_BATCH = IN_STEP._replace(step_id="batch")


@pytest.fixture(autouse=True)
def _on_n9(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(alone, "is_this_machine", {"n9": True, "n10": False}.get)
    monkeypatch.setattr(socket, "gethostname", lambda: "n9")


@pytest.mark.parametrize(
    ("values", "jobs", "says"),
    [
        ({}, None, "outside Slurm"),
        ({"ancestors": IN_BATCH}, None, "outside Slurm"),
        (BATCH, None, "the allocation of job 7 has one task"),
        ({**BATCH, "ancestors": IN_BATCH, "job_num_tasks": "1"}, None, "it trains alone"),
        ({"job_id": "7"}, None, "it trains alone"),
        ({**TASK, "switch": "off"}, {"worker": 2}, "SLURM_RESOLVER=off"),
        ({"switch": "off", "ancestors": IN_STEP}, None, "SLURM_RESOLVER=off"),
        ({**TASK, "switch": "off", "ancestors": Ancestors("orted")}, None, "SLURM_RESOLVER=off"),
    ],
)
def test_alone(values: Dict[str, Any], jobs: Optional[Dict[str, int]], says: str) -> None:
    assert says in str(why_alone(SlurmStep(**values), ClusterOptions(jobs)))


@pytest.mark.parametrize(
    "values",
    [
        TASK,
        {**TASK, "ancestors": IN_STEP},
        {**TASK, "ancestors": IN_STEP, "switch": "on"},
        {**TASK, "ancestors": IN_STEP._replace(job_id="8"), "het_size": 2},
        {**TASK, "ancestors": IN_STEP._replace(job_id=None, step_id=None)},
        {**TASK, "node_name": "x1"},  # nothing tells where that is, and n9 may be its host name
        {**TASK, "node_name": "n10", "task_pid": None},  # read for another task
    ],
)
def test_a_task(values: Dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    if values["node_name"] == "x1":
        monkeypatch.setattr(socket, "gethostname", lambda: "host17")
    assert why_alone(SlurmStep(**values), ClusterOptions()) is None


@pytest.mark.parametrize(
    ("values", "jobs", "error", "says"),
    [
        ({}, {"worker": 2}, NotInStepError, "slurm-resolver run -n 2"),
        ({"ancestors": IN_STEP}, None, NotInStepError, "task of step 7.0, but none of its"),
        (BATCH, {"worker": 1}, NotInStepError, "srun python"),
        ({**BATCH, "job_num_tasks": "4"}, None, NotInStepError, "srun -n 4 python"),
        ({**BATCH, "job_num_nodes": "2"}, None, NotInStepError, "srun python"),
        ({**BATCH, "het_size": 2}, None, NotInStepError, "SLURM_RESOLVER=off"),
        (
            {**TASK, "ancestors": Ancestors("prted")},
            None,
            NotInStepError,
            "by prted, not by srun",
        ),
        (
            {**TASK, "ancestors": IN_STEP._replace(step_id="3")},
            None,
            EnvironmentValueError,
            "SLURM_STEP_ID=0, but Slurm started this process in step 7.3",
        ),
        ({**TASK, "node_name": "n10"}, None, EnvironmentValueError, "SLURMD_NODENAME=n10, but"),
        ({**TASK, "node_name": "x1"}, None, EnvironmentValueError, "this machine is called n9"),
    ],
)
def test_neither(
    values: Dict[str, Any], jobs: Optional[Dict[str, int]], error: Any, says: str
) -> None:
    with pytest.raises(error) as caught:
        why_alone(SlurmStep(**values), ClusterOptions(jobs))
    assert says in str(caught.value)


@pytest.mark.parametrize(
    ("node", "addresses", "expected"),
    [
        ("n9", [], True),
        ("N9.example.com", [], True),
        ("x1", ["127.0.0.1"], True),
        ("x1", ["192.0.2.1"], False),  # of a network for documentation: nobody has it
        ("x1", ["192.0.2.1", "127.0.0.1"], True),
        ("x1", [], None),
    ],
)
def test_a_machine_is_known_by_its_name_and_its_addresses(
    monkeypatch: pytest.MonkeyPatch, node: str, addresses: Any, expected: Optional[bool]
) -> None:
    def getaddrinfo(*_: Any, **__: Any) -> Any:
        if not addresses:
            raise OSError("unknown")
        return [(socket.AF_INET, None, None, "", (address, 0)) for address in addresses]

    monkeypatch.setattr(socket, "getaddrinfo", getaddrinfo)
    assert is_this_machine(node) is expected
