"""How jobs restart and end after a real Slurm has preempted, limited or cancelled them.

All jobs run at once on separate nodes, so that a requeued job gets its nodes again.
"""

from __future__ import annotations

import itertools
import re
import shlex
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

import pytest
from by_version import expected
from folders import helper
from kinds import Texts
from slurm_cluster import SlurmCluster
from slurm_conf import numbered
from slurm_fixture import slurm_of
from slurm_installation import Installation
from slurm_jobs import ENVIRONMENT, await_jobs, read

# A task that saves on a signal and then requeues the job. Its argument sets the way and the limit.
SAVES = helper("slurm_preempted.py")
# A task that does not save on a signal, and ends with status 0 at the second start.
TASK = """\
echo "start ${SLURM_RESTART_COUNT:-0}"
[ -z "${SLURM_RESTART_COUNT-}" ] || exit 0
"""
TRAINS = "exec sleep 600"
FAILS = '[ "$SLURM_PROCID" = 1 ] || exec sleep 600; until [ -e go ]; do sleep 0.1; done; exit 5'
# Slurm checks every 30 s whether a signal is due, 120 s before the limit. JOB is the job's id.
LIMIT = "scontrol update JobId=JOB EndTime=now+100"
URGENT = "sbatch -p urgent -N COUNT -w NODES --exclusive -o /dev/null --wrap true"
# Slurm does not requeue the job. From 24.05 to 25.11, the job stays PREEMPTED after its restart.
NOT_BY_SLURM = {
    "22.05": "COMPLETED",
    "24.05": "PREEMPTED",
    "26.05": "COMPLETED",
}
# From 24.05 on, a job that ends in its GraceTime is PREEMPTED, whatever its exit status.
ENDS_PREEMPTED = {"22.05": "FAILED", "24.05": "PREEMPTED"}


class Case(NamedTuple):
    """A job on separate nodes.

    Attributes:
        printed: options of `slurm-resolver sbatch --requeue`, which prints the batch file. If None,
                the file contains a line that must not run before the training has ended.
        action: the command that the test runs once all tasks have started.
        saves: the argument of SAVES. If None, the tasks do not save, and run `train`.
        train: the commands of a task at the first start.
        options: options of sbatch.
        restarts: how often the job starts again.
        state: the last state of the job, by version.
        tasks: the number of tasks; a single task has one node, and more tasks have two.
    """

    printed: str | None
    action: str = URGENT
    saves: str | None = None
    train: str = TRAINS
    options: str = ""
    restarts: int = 1
    state: Mapping[str, str] = {"22.05": "COMPLETED"}
    tasks: int = 4


def saving(saves: str, printed: str | None = None, **more: object) -> Case:
    """Returns the case of a job with one task that saves and is preempted."""
    return Case(printed, saves=saves, tasks=1, **more)  # type: ignore[arg-type]


SERVERS = "-N 2 --tasks-per-node 2 --ps 1"
# As docs/heterogeneous.md says: a second component, and one step over both.
SECOND = """
#SBATCH hetjob
#SBATCH --nodes=1 --ntasks=2 --requeue --nodelist=n{}
"""
CANCELLED = {"22.05": "CANCELLED"}
CASES = {
    "saved": saving('["scontrol", null]'),
    "saved, with an exit status": saving('["exit-code", null]', ""),
    "saved, before the time limit": saving(
        '["scontrol", null]', action=LIMIT, options="--signal=USR1@120"
    ),
    "saved, at the cap": saving(
        '["scontrol", 0]',
        restarts=0,
        state=ENDS_PREEMPTED,
    ),
    "saved, and may not be requeued": saving(
        '["scontrol", null]', options="--no-requeue", restarts=0, state=ENDS_PREEMPTED
    ),
    "saved, not requeued by Slurm": saving(
        '["scontrol", null]', options="-p cancel", state=NOT_BY_SLURM
    ),
    "saved, and is being cancelled": saving(
        '["scontrol", null]', action="scancel JOB", restarts=0, state=CANCELLED
    ),
    "the time limit": Case(SERVERS, LIMIT),
    "the time limit, in two components": Case(SERVERS, LIMIT),
    "the time limit, in an array": Case(SERVERS, LIMIT, options="--array=7"),
    "preempted": Case(SERVERS),
    "cancelled": Case(
        SERVERS,
        "scancel JOB",
        restarts=0,
        state=CANCELLED,
    ),
    "it fails": Case(
        SERVERS,
        "touch go",
        train=FAILS,
        restarts=0,
        state={"22.05": "FAILED"},
    ),
}
COUNTS = {name: 1 if case.tasks == 1 else 2 for name, case in CASES.items()}  # nodes
FIRST = dict(zip(CASES, itertools.accumulate(COUNTS.values(), initial=1)))
NODES = numbered(1, sum(COUNTS.values()), cpus=2)
CONF = [
    "PreemptType=preempt/partition_prio",
    "PreemptMode=REQUEUE",
    "PartitionName=low Nodes=ALL Default=YES PriorityTier=1 GraceTime=600",
    "PartitionName=cancel Nodes=ALL PriorityTier=1 GraceTime=600 PreemptMode=CANCEL",
    "PartitionName=urgent Nodes=ALL PriorityTier=9 PreemptMode=OFF",
]
# A job that has ended: its components' fields of scontrol, and its output.
Ended = tuple[list[Texts], str]


def nodes_of(name: str) -> str:
    return f"n[{FIRST[name]}-{FIRST[name] + COUNTS[name] - 1}]"


def submit(slurm: SlurmCluster, folder: Path, name: str) -> str:
    """Submits the job of a case, and returns its id."""
    case = CASES[name]
    folder.mkdir()
    (folder / "task").write_text(TASK + case.train)
    words = "bash task" if case.saves is None else shlex.join([*SAVES, case.saves])
    text = f"#!/bin/bash\nsrun {words}\nstatus=$?\necho rest\nexit $status\n"
    if case.printed is not None:
        command = f"slurm-resolver sbatch --no-check --requeue {case.printed} -- {words}"
        text = slurm.run(command, env=ENVIRONMENT).stdout
    nodes = nodes_of(name)
    if "components" in name:
        nodes = f"n{FIRST[name]}"
        text = text.replace("--nodes=2", "--nodes=1")
        text = text.replace("\n\n", SECOND.format(FIRST[name] + 1), 1)
        text = text.replace("step=(srun", 'step=(srun "--het-group=0,1"')
    text = text.replace("#!/bin/bash\n", f"#!/bin/bash\n#SBATCH --nodelist={nodes}\n", 1)
    (folder / "job").write_text(text)
    size = "-N1 -n1 --exclusive" if case.tasks == 1 else ""
    command = f"sbatch --parsable --open-mode=append -o {folder}/out {size} {case.options} job"
    return slurm.run(
        command,
        cwd=folder,
        env=ENVIRONMENT,
    ).stdout.strip()


many_nodes = slurm_of(NODES, CONF)


@pytest.fixture(scope="module")
def jobs(many_nodes: SlurmCluster, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Ended]:
    """The jobs of all cases, after they have ended."""
    top = tmp_path_factory.mktemp("requeue")
    folders = {name: top / str(i) for i, name in enumerate(CASES)}
    ids = {name: submit(many_nodes, folders[name], name) for name in CASES}

    def has_started(name: str) -> bool:
        return read(folders[name] / "out").count("start 0\n") == CASES[name].tasks

    def act(name: str) -> None:
        action = CASES[name].action.replace("JOB", ids[name])
        action = action.replace("NODES", nodes_of(name))
        many_nodes.run(action.replace("COUNT", str(COUNTS[name])), cwd=folders[name])

    ended = await_jobs(many_nodes, ids, folders, has_started, act)
    return {name: (components, read(folders[name] / "out")) for name, components in ended.items()}


@pytest.mark.parametrize("name", CASES)
def test_a_job_starts_as_often_as_it_should(
    jobs: dict[str, Ended], installation: Installation, name: str
) -> None:
    case = CASES[name]
    components, output = jobs[name]
    starts = re.findall(r"(?:^|: )start (\d+)$", output, re.M)
    numbers = [str(number) for number in range(case.restarts + 1)]
    assert sorted(starts) == sorted(numbers * case.tasks), output
    assert {job["JobState"] for job in components} == {expected(case.state, installation)}, output
    assert {job["Restarts"] for job in components} == {str(case.restarts)}, output
    assert len(components) == (2 if "components" in name else 1)
    if case.printed is None and case.restarts:
        assert output.count("rest\n") == 1, output
    # Only the batch file gets the signal: the tasks train until the requeue ends them.
    assert "User defined signal" not in output
