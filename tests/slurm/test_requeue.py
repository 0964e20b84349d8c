"""How often a preempted job starts, and how it ends, on a real Slurm.

All jobs have a GraceTime, and are preempted together by one job that wants all nodes.
"""

from __future__ import annotations

import json
import re
import shlex
import sys
from pathlib import Path
from typing import Dict, Iterator, Mapping, NamedTuple, Optional

import pytest
from by_version import expected
from folders import HELPERS
from slurm_cluster import Node, SlurmCluster, started
from slurm_installation import Installation
from slurm_jobs import ENDS, ENVIRONMENT, read, shown_jobs, wait_for

pytestmark = pytest.mark.slurm

ALWAYS_COMPLETED = {"22.05": "COMPLETED"}


class Case(NamedTuple):
    """A job: its batch file, and what becomes of it.

    Attributes:
        requeue: how the task requeues the job.
        max_restarts: the task's cap.
        printed: options of `slurm-resolver sbatch`, which makes the batch file; None is one of two
            lines, the second of which must not run before the training has ended.
        options: those of sbatch.
        restarts: how often the job starts again.
        state: the job's last state, by version.
    """

    requeue: str = "scontrol"
    max_restarts: Optional[int] = None
    printed: Optional[str] = None
    options: str = ""
    restarts: int = 1
    state: Mapping[str, str] = ALWAYS_COMPLETED


# From 24.05 on what ends in its GraceTime is PREEMPTED, whatever its exit status is.
ENDS_PREEMPTED = {"22.05": "FAILED", "24.05": "PREEMPTED"}
CASES = {
    "scontrol": Case(),
    "array": Case(options="--array=7"),
    "exit-code": Case("exit-code", printed="--requeue"),
    "cap": Case(max_restarts=0, restarts=0, state=ENDS_PREEMPTED),
    "none": Case("scontrol", options="--no-requeue", restarts=0, state=ENDS_PREEMPTED),
    # Slurm does not requeue it; from 24.05 to 25.11 it never forgets that it has preempted it.
    "cancelled": Case(
        options="-p cancel",
        state={"22.05": "COMPLETED", "24.05": "PREEMPTED", "26.05": "COMPLETED"},
    ),
}
NODES = [Node(f"n{number}", cpus=2) for number in range(1, len(CASES) + 1)]
NAMES = ",".join(node.name for node in NODES)
PARTITION = f"Nodes={NAMES} DefaultTime=10 MaxTime=UNLIMITED"
CONF = [
    "PreemptType=preempt/partition_prio",
    "PreemptMode=REQUEUE",
    f"PartitionName=p {PARTITION} Default=YES PriorityTier=1 GraceTime=60",
    f"PartitionName=cancel {PARTITION} PriorityTier=1 GraceTime=60 PreemptMode=CANCEL",
    f"PartitionName=urgent {PARTITION} PriorityTier=9 PreemptMode=OFF",
]


class Ended(NamedTuple):
    """A job that has ended: the fields of scontrol, and what it has printed."""

    fields: Dict[str, str]
    output: str


@pytest.fixture(scope="module")
def jobs(
    installation: Installation, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Dict[str, Ended]]:
    """The jobs of all cases, once they have been preempted and have ended."""
    folder = tmp_path_factory.mktemp("requeue")
    cluster = SlurmCluster(NODES, folder / "slurm", extra_conf=CONF, installation=installation)
    with started(cluster) as slurm:
        ids = {name: submit(slurm, folder / str(i), CASES[name]) for i, name in enumerate(CASES)}
        outputs = {name: folder / str(i) / "out" for i, name in enumerate(CASES)}
        wait_for(lambda: all("start 0" in read(path) for path in outputs.values()))
        slurm.run(f"sbatch -p urgent -N{len(NODES)} --exclusive -o /dev/null --wrap true")
        fields: Dict[str, Dict[str, str]] = {}

        def ended() -> bool:
            found = shown_jobs(slurm)
            fields.update({name: found[id][0] for name, id in ids.items()})
            return all(field["JobState"] in ENDS for field in fields.values())

        wait_for(ended)
        yield {name: Ended(fields[name], read(path)) for name, path in outputs.items()}


def submit(slurm: SlurmCluster, folder: Path, case: Case) -> str:
    """Submits the job of a case, and returns its id."""
    folder.mkdir()
    arguments = json.dumps([case.requeue, case.max_restarts])
    words = [sys.executable, str(HELPERS / "slurm_preempted.py"), arguments]
    if case.printed is None:
        text = f"#!/bin/bash\nsrun {shlex.join(words)}\nstatus=$?\necho rest\nexit $status\n"
    else:
        text = slurm.run(
            f"slurm-resolver sbatch --no-check {case.printed} -- {shlex.join(words)}",
            env=ENVIRONMENT,
        ).stdout
    (folder / "job.sbatch").write_text(text)
    options = f"--parsable -N1 -n1 --exclusive --open-mode=append -o {folder}/out {case.options}"
    return slurm.run(f"sbatch {options} job.sbatch", cwd=folder, env=ENVIRONMENT).stdout.strip()


@pytest.mark.parametrize("name", CASES)
def test_a_preempted_job_starts_as_often_as_it_should(
    jobs: Dict[str, Ended], installation: Installation, name: str
) -> None:
    case, (fields, output) = CASES[name], jobs[name]
    starts = [f"start {restart}" for restart in range(case.restarts + 1)]
    assert re.findall(r"(?:^|: )(start \d+)$", output, re.M) == starts, output
    assert fields["Restarts"] == str(case.restarts)
    assert fields["JobState"] == expected(case.state, installation), output
    if case.printed is None and case.restarts:
        assert output.count("rest\n") == 1, output


def test_where_a_task_has_failed_the_others_do_not_requeue_the_job(
    installation: Installation, tmp_path: Path
) -> None:
    """Each trains alone; srun ends the first by SIGTERM, as by the site's PMIx from 26.05 on."""
    failing = tmp_path / "failing"
    words = [sys.executable, str(HELPERS / "slurm_preempted.py"), '["scontrol", 3]', str(failing)]
    batch = tmp_path / "job.sbatch"
    batch.write_text(f"#!/bin/bash\nsrun --kill-on-bad-exit=1 {shlex.join(words)}\nexit $?\n")
    nodes = [Node("n1", cpus=2)]
    with started(SlurmCluster(nodes, tmp_path / "slurm", installation=installation)) as slurm:
        output = tmp_path / "out"
        submitted = f"sbatch --parsable -n2 --open-mode=append -o {output} {batch}"
        job = slurm.run(submitted, env=ENVIRONMENT).stdout.strip()
        wait_for(lambda: read(output).count("start 0") == 2)
        failing.touch()
        fields: Dict[str, str] = {}

        def ended() -> bool:
            fields.update(shown_jobs(slurm)[job][0])
            return fields["JobState"] in ENDS

        wait_for(ended)
    assert (fields["JobState"], fields["Restarts"]) == ("FAILED", "0"), read(output)
    assert f"after SIGTERM: job {job} not requeued: SIGTERM has come" in read(output)
