"""Compares the cluster that each task of a live Slurm step resolves with the task's real node.

The real node is the task's hostname, which the kernel keeps for each node. Slurm's variables are
under test, so they are not used for this.
"""

from __future__ import annotations

import json
import shlex
from collections.abc import Sequence
from pathlib import Path

from folders import helper
from kinds import Fields, Records, Strings
from slurm_cluster import SlurmCluster

import slurm_resolver as sr
from slurm_resolver.start.transport import TaskDevices, find_transport

TASK = shlex.join(helper("slurm_task.py"))


def run(
    slurm: SlurmCluster,
    command: str,
    output: Path,
    timeout: float = 180.0,
) -> Records:
    """Runs a command line with slurm_task.py as TASK; returns the tasks' records by rank."""
    command = command.replace("TASK", TASK)
    slurm.run(
        command,
        cwd=output.parent,
        env={"TASK_OUTPUT": str(output)},
        timeout=timeout,
    )
    return accounts(output)


def run_and_resolve(slurm: SlurmCluster, command: str, output: Path) -> Records:
    """Like `run`, but TASK only saves its variables, in a fraction of the time.

    This process resolves them, without a rendezvous.
    """
    save = f"bash -c {shlex.quote(f'env -0 > {output}/$(hostname).$SLURM_PROCID')}"
    slurm.run(command.replace("TASK", save), cwd=output.parent)
    lines = []
    for path in output.iterdir():
        host, rank = path.name.split(".")
        pairs = path.read_text().rstrip("\0").split("\0")
        environ = dict(pair.split("=", 1) for pair in pairs)
        lines.append(
            {
                "host": host,
                "rank": int(rank),
                "cluster": sr.resolve(environ=environ, layout="environment").to_dict(),
                "error": None,
            }
        )
    assert lines, "no task saved its variables"
    return sorted(lines, key=rank_of)


def run_at_once(slurm: SlurmCluster, commands: Sequence[str], output: Path) -> list[Records]:
    """Runs jobs whose tasks contact each other at the same time; returns each job's records."""
    jobs = [slurm.popen(command, env={"TASK_OUTPUT": str(output)}) for command in commands]
    for job in jobs:
        _, errors = job.communicate(timeout=180)
        assert job.returncode == 0, errors
    job_ids = {line["cluster"]["job_id"] for line in accounts(output)}
    assert len(job_ids) == len(commands)
    each = [accounts(output, job_id) for job_id in sorted(job_ids)]
    for lines in each:
        assert_right(lines)
        job_id = lines[0]["cluster"]["job_id"]
        for line in lines:
            assert line["answers"] == [f"{job_id}:{rank}" for rank in range(len(lines))]
    return each


def accounts(output: Path, job_id: str = "*") -> Records:
    """Returns the records of all tasks, or of those of one job, by rank."""
    lines = [json.loads(path.read_text()) for path in output.glob(f"{job_id}.*")]
    assert lines, "no task wrote a record"
    return sorted(lines, key=rank_of)


def rank_of(line: Fields) -> int:
    """Returns the rank of the task that wrote a record."""
    return int(line["rank"])


def use_nccl(lines: Records) -> bool:
    """Returns whether the tasks of a step choose NCCL."""
    return find_transport({line["rank"]: TaskDevices(*line["devices"]) for line in lines})[0]


def truth(hosts: Strings) -> list[tuple[str, int]]:
    """Returns for each rank its host, and the number of lower ranks on that host."""
    return [(host, hosts[:rank].count(host)) for rank, host in enumerate(hosts)]


def assert_right(lines: Records) -> None:
    """All tasks agree on the cluster, and every rank runs where the cluster says."""
    hosts = [line["host"] for line in lines]
    assert [line["rank"] for line in lines] == list(range(len(hosts)))
    for line in lines:
        assert line["error"] is None
        tasks = line["cluster"]["tasks"]
        assert tasks == lines[0]["cluster"]["tasks"]
        assert line["cluster"]["self"]["rank"] == line["rank"]
        assert [(task["node"], task["local_rank"]) for task in tasks] == truth(hosts)
        assert len({task["address"] for task in tasks}) == len(tasks)
