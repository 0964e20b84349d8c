"""Preempted training on a real Slurm: lost steps, final weights, leftovers and exit statuses.

Each job is a batch job of two tasks on two nodes, and has a fault at a known step.
"""

from __future__ import annotations

import json
import re
import shlex
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from folders import EXAMPLES, HELPERS
from kinds import Fields, Records, Texts
from slurm_cluster import SlurmCluster
from slurm_conf import numbered
from slurm_fixture import slurm_of
from slurm_jobs import ENVIRONMENT, read, shown_jobs, wait_for

PROGRAM = HELPERS / "slurm_train.py"
FAILURES = ("FAILED", "CANCELLED")
OUTCOME = (
    "weights",
    "history",
    "epochs",
)
NODES = "Nodes=n8,n9 DefaultTime=10 MaxTime=UNLIMITED"
CONF = [
    "PreemptType=preempt/partition_prio",
    "PreemptMode=REQUEUE",
    "KillWait=10",
    f"PartitionName=p {NODES} Default=YES PriorityTier=1 GraceTime=20",
    f"PartitionName=urgent {NODES} PriorityTier=9 PreemptMode=OFF",
]


# A Slurm whose partition `urgent` preempts the jobs of partition `p`.
slurm = slurm_of(numbered(8, 9), CONF)


class Job:
    """A batch job that trains, and the records of its ranks."""

    def __init__(
        self,
        slurm: SlurmCluster,
        folder: Path,
        kind: str,
        *,
        options: str = "",
        before: str = "",
        faults: Sequence[Any] = (),
        **arguments: Any,
    ) -> None:
        self.slurm = slurm
        self.folder = folder
        words = [sys.executable, str(PROGRAM), kind, str(folder), "--faults", json.dumps(faults)]
        for name, value in arguments.items():
            words.append(f"--{name.replace('_', '-')}={value}")
        step = f"{before} srun -N2 -n2 --kill-on-bad-exit=1 {shlex.join(words)}"
        batch = folder / "job.sbatch"
        batch.write_text(f"#!/bin/bash\n{step}\n")
        submit = f"sbatch --parsable -N2 -n2 --exclusive --open-mode=append -o {folder}/out"
        self.id = slurm.run(f"{submit} {options} {batch}", env=ENVIRONMENT).stdout.strip()

    def state(self) -> Texts:
        return shown_jobs(self.slurm)[self.id][0]

    def await_end(self, timeout: float = 300.0) -> None:
        """Waits until the job has completed."""

        def completed() -> bool:
            state = self.state()["JobState"]
            assert state not in FAILURES, self.output()
            return state == "COMPLETED"

        wait_for(completed, timeout, self.output)

    def output(self) -> str:
        return read(self.folder / "out")

    def lines(self, rank: int) -> Records:
        text = read(self.folder / f"rank.{rank}.jsonl")
        return [json.loads(line) for line in text.splitlines() if line.endswith("}")]

    def lost(self) -> list[int]:
        """Returns for each restart how many completed steps were repeated.

        A killed rank may not have recorded its last step, but the other rank has.
        """
        ranks = [self.lines(rank) for rank in (0, 1)]
        first, other = (
            {line["start"]: line["begins"] for line in reversed(lines) if "begins" in line}
            for lines in ranks
        )
        assert first == other, "the ranks do not resume at the same step"
        done = [(line["start"], line["done"]) for line in ranks[0] + ranks[1] if "done" in line]
        last = {**first, **dict(sorted(done))}
        return [last[start - 1] - first[start] for start in sorted(first) if start > 0]

    def ended(self) -> Fields:
        """Returns the final weights, and for Keras history and epochs, which all ranks share."""
        ends: Records = [{}, {}]
        for rank, end in enumerate(ends):
            for line in self.lines(rank):
                end.update({what: line[what] for what in OUTCOME if what in line})
        assert "weights" in ends[0], self.output()
        assert ends[0] == ends[1]
        return ends[0]

    def assert_ended(self, outcome: Fields, restarts: int) -> None:
        """The job has trained to this outcome, and none of its processes is left."""
        assert self.ended() == outcome
        state = self.state()
        assert (state["Restarts"], state["ExitCode"]) == (str(restarts), "0:0")
        left = self.slurm.run(["pgrep", "-af", str(self.folder)], status=None).stdout
        assert str(PROGRAM) not in left


Whole = dict[str, Fields]  # the results of uninterrupted trainings, by kind


@pytest.fixture(scope="module")
def whole(slurm: SlurmCluster, tmp_path_factory: pytest.TempPathFactory) -> Whole:
    results = {}
    for kind in ("keras", "loop"):
        job = Job(slurm, tmp_path_factory.mktemp(kind), kind)
        job.await_end()
        results[kind] = job.ended()
        assert [line["done"] for line in job.lines(1) if "done" in line] == list(range(1, 41))
    return results


def test_preempted_four_times_an_array_task_ends_with_the_same_weights(
    slurm: SlurmCluster, tmp_path: Path, whole: Whole
) -> None:
    """The causes are a signal to a task, a signal to the step, an urgent job and a user's requeue.

    For the last two, Slurm sends SIGTERM, which TensorFlow handles once a strategy exists.
    """
    job = Job(
        slurm,
        tmp_path,
        "keras",
        options="--array=7",
        faults=[
            [1, 3, "SIGUSR1"],
            [0, 13, "scancel --signal=USR1 $SLURM_JOB_ID.$SLURM_STEP_ID"],
            [
                0,
                23,
                (
                    "sbatch -p urgent -N2 --exclusive -o /dev/null --wrap 'sleep 1' "
                    f"> {tmp_path}/urgent"
                ),
            ],
            [0, 33, "scontrol requeue $SLURM_JOB_ID"],
        ],
        sleep=0.5,
    )
    job.await_end(timeout=600)
    assert job.lost() == [0, 0, 0, 0]
    assert job.ended()["epochs"] == [0, 1, 2, 3]  # EarlyStopping ends it after 4 of 8
    assert f"job {job.id}_7 requeued, restart 2" in job.output()
    assert "has been requeued already" in job.output()
    job.assert_ended(whole["keras"], restarts=4)


@pytest.mark.newest
def test_killed_twice_under_supervise_it_ends_with_the_same_weights(
    slurm: SlurmCluster, tmp_path: Path, whole: Whole
) -> None:
    """The faults kill one worker between two saves, and the first worker during a save."""
    job = Job(
        slurm,
        tmp_path,
        "loop",
        before="slurm-resolver supervise --watch 0 --",
        save_every=10,
        ballast=64,
        faults=[[1, 13, "SIGKILL"], [0, 23, "kill in save"]],
    )
    job.await_end()
    assert job.lost() == [3, 10]
    assert {path.name.partition(".")[0] for path in (tmp_path / "checkpoints").iterdir()} == {
        "checkpoint",
        "slurm_resolver",
        "ckpt-4",
        "ckpt-5",
    }
    for number, who in ((1, "rank 1 on n9"), (2, "rank 0 on n8")):
        assert re.search(
            rf"restart {number} of 3; now on n\[8-9\]; first failure: {who} at \S+, "
            "(Killed|its process has ended)",  # whichever line came first
            job.output(),
        ), job.output()
    job.assert_ended(whole["loop"], restarts=0)


@pytest.mark.newest
def test_the_examples_batch_file_resumes_as_it_stands(slurm: SlurmCluster, tmp_path: Path) -> None:
    folder = EXAMPLES / "preemptible"
    path = tmp_path / "out"
    submit = f"sbatch --parsable --ntasks-per-node=1 --cpus-per-task=1 --output={path}"
    arguments = f"--epochs 3 --pause 0.1 --checkpoints {tmp_path}/checkpoints"
    # the example needs scikit-learn, which is hidden from other programs
    environment = {**ENVIRONMENT, "PYTHONPATH": ""}
    job = slurm.run(
        f"{submit} train.sbatch {arguments}", cwd=folder, env=environment
    ).stdout.strip()

    def await_output(pattern: str) -> None:
        def found() -> bool:
            return re.search(pattern, read(path), re.M | re.S) is not None

        wait_for(found, 400, lambda: read(path))

    await_output("Epoch 1/3")
    slurm.run(f"scancel --signal=USR1 {job}.0")
    await_output(f"because of SIGUSR1: job {job} requeued, restart 1")
    await_output(r": trained, weights (\w+)$.*: trained, weights \1$")
