"""`slurm-resolver supervise` with stand-ins for Slurm's commands."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from pathlib import Path

import pytest
from kinds import Strings, Texts
from local_run import COMMAND, captured
from programs_on_path import stand_ins
from slurm_jobs import read

from slurm_resolver.supervision import batch_host

JOB = """\
JobId=7 JobName=x
   JobState=RUNNING
   Restarts=0
   NodeList=n[1-3]
   BatchHost=n1
   SubmitLine=sbatch job JobState=FAILED
   StdOut=FOLDER/my out
"""
# Each stand-in logs its call and runs NAME.do in the test's folder, if that exists.
PROGRAM = """\
#!/bin/bash
cd "${0%/*}/.."; name=${0##*/}
echo "${*//$'\n'/;}" >>$name.calls
[ ! -e $name.do ] || . ./$name.do
"""
SCONTROL = """\
case "$*" in
*"show job"*) cat job ;;
*"show node"*) cat node ;;
esac
"""
LOOKS = 'case "$*" in *batch-host*) exec sleep 600 ;; esac\n'  # the watcher's step on another node
FAILS = """\
[ $(grep -vc batch-host srun.calls) -gt COUNT ] && { echo well; exit 0; }
echo '1: Traceback (most recent call last):' >&2
echo "1: RuntimeError: no step $(grep -vc batch-host srun.calls)" >&2
echo 'srun: error: n2: task 1: Exited with exit code 3' >&2
exit 3
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder with stand-ins for Slurm's commands, for a job on three nodes."""
    (tmp_path / "bin").mkdir()
    stand_ins(tmp_path / "bin", PROGRAM, "srun", "scontrol", "scancel")
    (tmp_path / "scontrol.do").write_text(SCONTROL)
    (tmp_path / "job").write_text(JOB.replace("FOLDER", str(tmp_path)))
    (tmp_path / "node").write_text(
        "\n".join([f"NodeName=n{i} Arch=x\n   State=MIXED Weight=1\n" for i in (1, 2, 3)])
    )
    return tmp_path


def environment(folder: Path) -> Texts:
    """Returns the variables of the batch file."""
    return {
        **os.environ,
        "PATH": f"{folder}/bin:{os.environ['PATH']}",
        "SLURM_JOB_ID": "7",
        "SLURMD_NODENAME": "n1",
    }


def supervise(folder: Path, options: str, variables: Mapping[str, str] = {}) -> tuple[int, Strings]:
    """Supervises `train` on two nodes; returns the exit status and the messages."""
    done = captured(
        [*COMMAND, *f"supervise --nodes 2 --pause 0 {options} -- srun --label train".split(),],
        env={**environment(folder), **variables}, cwd=folder,
    )  # fmt: skip
    assert "\nTraceback" not in f"\n{done.stderr}"
    said = re.findall(r"^slurm-resolver supervise: (.*)$", done.stderr, re.M)
    return done.returncode, [re.sub(r" at \d{4}\S+,", ",", line) for line in said]


def calls(folder: Path, name: str = "srun") -> Strings:
    """Returns the arguments of a program's calls, except those of the watcher's step."""
    lines = read(folder / f"{name}.calls").splitlines()
    return [line for line in lines if "batch-host" not in line]


def test_the_node_of_the_same_failure_is_left_out_once(folder: Path) -> None:
    (folder / "srun.do").write_text(
        LOOKS + FAILS.replace("COUNT", "9").replace("$(grep -vc batch-host srun.calls)", "7")
    )
    status, said = supervise(folder, "--restarts 9")
    assert status == 3
    assert [re.findall(r"nodelist=(\S+)", line)[0] for line in calls(folder)] == [
        "n[1-2]",
        "n[1-2]",
        "n[1,3]",
    ]
    assert "n[1,3], without n2 (the same failure twice); first failure: rank 1 on" in said[1]
    assert said[2].startswith("not started again: the last two failures were the same")


# The nodes of the training, and the checks before, if a check of all nodes prints this line.
CHECKED = {
    "1: warning: worker 1 (rank 1 on n2) computes 3.0 times as slowly as the median": ("n[1,3]", 1),
    "0: presence    failed   1 of 3 tasks has not come: worker 0 (rank 0 on n1).": ("n[2-3]", 2),
    "srun: error: Task launch for StepId=7.0 failed on node n2: Connection": ("n[1,3]", 2),
    "1: warning: NCCL uses sockets in worker 1 (rank 1 on n2)": ("n[1-2]", 1),
}


@pytest.mark.parametrize("line", CHECKED)
def test_a_bad_node_is_left_out(folder: Path, line: str) -> None:
    (folder / "srun.do").write_text(
        f'{LOOKS}case "$*" in *"nodelist=n[1-3] "*) echo {line!r} >&2; exit 1 ;; esac\n'
    )
    status, said = supervise(folder, "--check")
    assert (status, len(said)) == (0, 1)
    nodes, checks = CHECKED[line]
    assert calls(folder)[-1].endswith(f" --nodelist={nodes} --label train")
    assert len(calls(folder)) == checks + 1


def test_the_step_that_watches_comes_back_with_the_next_start(folder: Path) -> None:
    (folder / "srun.do").write_text(
        "number=$(grep -c batch-host srun.calls)\n"
        'case "$*" in *batch-host*) [ $number = 1 ] && exit 138; exec sleep 600 ;; esac\n'
        "until [ $number != 0 ]; do number=$(grep -c batch-host srun.calls); done\n"
        "[ $(grep -vc batch-host srun.calls) = 2 ] || exit 3\n"
    )
    status, said = supervise(folder, "--watch 9")
    assert (status, len(said)) == (0, 2)
    assert len([line for line in read(folder / "srun.calls").splitlines() if "batch" in line]) == 2


def test_why_the_step_that_watches_has_ended_is_said(folder: Path) -> None:
    (folder / "srun.do").write_text(
        'case "$*" in *batch-host*) echo no more processes >&2; echo $$ >watch; exit 1 ;; esac\n'
        'until [ -e watch ] && grep -qs ") Z " /proc/$(cat watch)/stat; do :; done\n'
    )
    said = ["the step that watches this node has ended: no more processes"]
    assert supervise(folder, "--watch 9") == (0, said)


def error(text: str) -> str:
    """Returns the program of an srun that prints this error."""
    return f"echo 'srun: error: {text}' >&2; exit 9\n"


LOST = "sed -i 's/NodeList=.*/NodeList=n[2-3]/' job; sed -i 1,2d node; exit 3\n"
# The program of srun, options, the exit status, and the beginning of the first message.
ENDS = {
    LOST: ("--requeue", 75, "the job has lost n1, this node; exit status 75"),
    FAILS.replace("COUNT", "9"): ("--restarts 0", 3, "--restarts 0 allows no more"),
    error("n2: task 1: Exited with exit code 75"): (
        "",
        75,
        "exit status 75: the training was ended by a",
    ),
    error("*** STEP 7.0 ON n1 CANCELLED AT 1970"): (
        "",
        9,
        "the step was cancelled, by Slurm or by a user",
    ),
    error("Unable to create step for job 7: Memory required by task is"): (
        "",
        9,
        "Slurm refuses srun's op",
    ),
    error("Task launch for StepId=7.0 failed on node n2: Unable to satisfy cpu bind request"): (
        "",
        1,
        "Slurm refuses",
    ),
}


@pytest.mark.parametrize("program", ENDS)
def test_when_there_is_no_restart(folder: Path, program: str) -> None:
    options, status, why = ENDS[program]
    (folder / "srun.do").write_text(LOOKS + program)
    found, said = supervise(folder, options)
    assert (found, len(calls(folder))) == (status, 1)
    assert said[0].startswith(f"not started again: {why}")
    # No step is held; without a step, scancel obeys variables such as SCANCEL_USER.
    assert not (folder / "scancel.calls").exists()


def test_too_few_healthy_nodes(folder: Path) -> None:
    (folder / "node").write_text(
        (folder / "node").read_text().replace("MIXED", "DOWN").replace("DOWN", "MIXED", 1)
    )
    status, said = supervise(folder, "--requeue")
    assert (status, calls(folder)) == (75, [])
    assert said[0].startswith(
        "not started: 1 healthy node left, without n2 (DOWN), n3 (DOWN): expected 2 or more "
        "(see --min-nodes); "
    )


@pytest.mark.nightly  # it waits as long as a user does
def test_nodes_register_with_a_controller_that_has_just_started(folder: Path) -> None:
    unknown = "[ -e registered ] && cat node || sed s/MIXED/UNKNOWN/ node; touch registered"
    (folder / "scontrol.do").write_text(SCONTROL.replace("cat node", unknown))
    assert supervise(folder, "") == (0, [])
    assert len(calls(folder, "scontrol")) == 4  # twice the job and its nodes


def test_a_step_of_a_heterogeneous_job_runs_once(folder: Path) -> None:
    (folder / "srun.do").write_text("exit 3\n")
    nodes = {f"SLURM_JOB_NODELIST_HET_GROUP_{group}": f"n{group + 1}" for group in (0, 1)}
    status, said = supervise(folder, "--requeue", {"SLURM_HET_SIZE": "2", **nodes})
    assert (status, calls(folder)) == (3, ["--label train"])
    assert said == ["exit status 3; not started again: the job is heterogeneous"]


@pytest.mark.parametrize(
    ("done", "end"),
    [
        ("requeued", "scontrol requeue"),
        ("cancelled", "scancel"),
    ],
)
def test_a_job_that_has_lost_its_batch_file(folder: Path, done: str, end: str) -> None:
    """It has it when the step first looks, and no longer when it looks again."""
    lose = "sed -i 's/NodeList=.*/NodeList=n[2-3]/' job"
    hostnames = "seq -f n%g $([ -e again ] && echo 2 || echo 1) 3; touch again"
    (folder / "scontrol.do").write_text(
        SCONTROL.replace("esac", f"*hostnames*) {hostnames}; {lose} ;;\nesac")
    )
    words = ["0.1", "7", done, *end.split()]
    captured(["bash", "-c", batch_host._SCRIPT, "watch", *words], status=0, env=environment(folder))
    assert (folder / "my out").read_text() == (
        f"slurm-resolver supervise: n1, the node of the batch file, has failed: the job is {done}\n"
    )
    program, *options = end.split()
    assert calls(folder, program)[-1] == " ".join((*options, "7"))
    asked = [line for line in calls(folder, "scontrol") if "hostnames" in line]
    assert asked == ["show hostnames n[1-3]", "show hostnames n[2-3]"]
