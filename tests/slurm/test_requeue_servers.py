"""Jobs with parameter servers, no task of which saves at a signal: how often they start.

All run at once, each on nodes of its own: a job that is requeued gets them again.
"""

from __future__ import annotations

from pathlib import Path
from typing import Dict, Iterator, List, NamedTuple, Tuple

import pytest
from slurm_cluster import Node, SlurmCluster, started
from slurm_installation import Installation
from slurm_jobs import ENDS, ENVIRONMENT, read, shown_jobs, wait_for

pytestmark = pytest.mark.slurm

# Ends well at the second start; a signal ends it at the first.
TASK = """\
echo "start ${SLURM_RESTART_COUNT:-0}"
[ -z "${SLURM_RESTART_COUNT-}" ] || exit 0
"""
TRAINS = "exec sleep 600"
FAILS = '[ "$SLURM_PROCID" = 1 ] || exec sleep 600; until [ -e go ]; do sleep 0.1; done; exit 5'
# Slurm looks every 30 s whether a signal is due, 120 s before the limit. JOB is the job's id.
LIMIT = "scontrol update JobId=JOB EndTime=now+100"
URGENT = "sbatch -p urgent -N2 -w NODES --exclusive -o /dev/null --wrap true"


class Case(NamedTuple):
    """A job on two nodes of its own.

    Attributes:
        options: those of `slurm-resolver sbatch`.
        action: what happens once all tasks have started.
        train: what a task does at the first start.
        restarts: how often the job starts again.
        state: its last state.
    """

    options: str
    action: str
    train: str = TRAINS
    restarts: int = 1
    state: str = "COMPLETED"


SERVERS = "-N 2 --tasks-per-node 2 --ps 1"
HETEROGENEOUS = "--ps 1 --ps-nodes 1 --tasks-per-node 1"
CASES = {
    "the time limit": Case(SERVERS, LIMIT),
    "the time limit, in two components": Case(HETEROGENEOUS, LIMIT),
    "the time limit, in an array": Case(f"{SERVERS} --array 7", LIMIT),
    "preempted": Case(f"{SERVERS} -p low", URGENT),
    "preempted, in two components": Case(f"{HETEROGENEOUS} -p low", URGENT),
    "cancelled": Case(SERVERS, "scancel JOB", restarts=0, state="CANCELLED"),
    "cancelled, with SIGTERM as the signal": Case(
        f"{SERVERS} --signal TERM@120", "scancel JOB", restarts=0, state="CANCELLED"
    ),
    "it fails": Case(SERVERS, "touch go", FAILS, 0, "FAILED"),
}
# a job that has ended: its components' fields of scontrol, and what it has printed
Ended = Tuple[List[Dict[str, str]], str]
FIRST = {name: 2 * i + 1 for i, name in enumerate(CASES)}
NODES = [Node(f"n{i + 1}", cpus=2) for i in range(2 * len(CASES))]
CONF = [
    "PreemptType=preempt/partition_prio",
    "PreemptMode=REQUEUE",
    "PartitionName=low Nodes=ALL PriorityTier=1 GraceTime=600",
    "PartitionName=urgent Nodes=ALL PriorityTier=9 PreemptMode=OFF",
]


def submit(slurm: SlurmCluster, folder: Path, name: str) -> str:
    """Submits the job of a case, and returns its id."""
    case, first = CASES[name], FIRST[name]
    folder.mkdir()
    (folder / "task").write_text(TASK + case.train)
    command = f"slurm-resolver sbatch --no-check --requeue {case.options} -- bash task"
    text = slurm.run(command, env=ENVIRONMENT).stdout
    nodes = [f"n[{first}-{first + 1}]"]
    if "hetjob" in text:  # each component on one of them
        nodes = [f"n{first}", f"n{first + 1}"]
        text = text.replace("#SBATCH hetjob\n", f"#SBATCH hetjob\n#SBATCH --nodelist={nodes[1]}\n")
    text = text.replace("#!/bin/bash\n", f"#!/bin/bash\n#SBATCH --nodelist={nodes[0]}\n")
    (folder / "job").write_text(text)
    slurm.run("shellcheck job", cwd=folder)
    command = f"sbatch --parsable -o {folder}/out job"
    return slurm.run(command, cwd=folder, env=ENVIRONMENT).stdout.strip()


@pytest.fixture(scope="module")
def jobs(
    installation: Installation, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Dict[str, Ended]]:
    """The jobs of all cases, once they have ended."""
    top = tmp_path_factory.mktemp("servers")
    folders = {name: top / str(i) for i, name in enumerate(CASES)}
    cluster = SlurmCluster(NODES, top / "slurm", extra_conf=CONF, installation=installation)
    with started(cluster) as slurm:
        ids = {name: submit(slurm, folders[name], name) for name in CASES}
        pending = dict(CASES)
        found: Dict[str, List[Dict[str, str]]] = {}

        def ended() -> bool:
            for name in list(pending):
                count = 3 if "components" in name else 4
                if read(folders[name] / "out").count("start 0\n") == count:
                    action = pending.pop(name).action.replace("JOB", ids[name])
                    nodes = f"n[{FIRST[name]}-{FIRST[name] + 1}]"
                    slurm.run(action.replace("NODES", nodes), cwd=folders[name])
            found.update(shown_jobs(slurm))
            left = [one for id in ids.values() for one in found[id] if one["JobState"] not in ENDS]
            return not pending and not left

        wait_for(ended, 400)
        yield {name: (found[id], read(folders[name] / "out")) for name, id in ids.items()}


@pytest.mark.parametrize("name", CASES)
def test_a_job_with_parameter_servers_starts_as_often_as_it_should(
    jobs: Dict[str, Ended], name: str
) -> None:
    case, (components, output) = CASES[name], jobs[name]
    tasks = 3 if "components" in name else 4
    starts = [output.count(f": start {restart}\n") for restart in range(3)]
    assert starts == [tasks, tasks * case.restarts, 0], output
    assert {job["JobState"] for job in components} == {case.state}, output
    assert {job["Restarts"] for job in components} == {str(case.restarts)}, output
    assert len(components) == (2 if "components" in name else 1)
    # Nobody gets the signal but the batch file: the tasks train until the requeue ends them.
    assert "User defined signal" not in output
