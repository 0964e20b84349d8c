"""Slurm accepts and runs the batch files that `slurm-resolver sbatch` prints."""

from __future__ import annotations

import json
import re
import shlex
from pathlib import Path

import pytest
from captured import Captured
from folders import ROOT
from kinds import Fields
from local_run import captured, printed_batch_file
from page_blocks import texts_of
from slurm_cluster import SlurmCluster
from slurm_conf import numbered
from slurm_fixture import slurm_of
from slurm_jobs import ENVIRONMENT, read, wait_for

from slurm_resolver.coordination.secret import MUNGE_SOCKET_VARIABLE, VARIABLE

OPTION_SETS = {
    "plain": "--no-check",
    "parameter servers": "--nodes 2 --tasks-per-node 2 --ps 2 -t 0-1 -c 2 --gpus-per-node 2",
    "parameter servers, requeued": "-N 3 --ps 1 --requeue --signal SIGHUP@70",
    "requeued": "--nodes 2 --requeue --signal TERM@60",
    "restarted": "--nodes 3 --restarts 2 --spare-nodes 1 --min-nodes 2 --gpus-per-node 2",
    "restarted and requeued": "-N 2 --tasks-per-node 2 --restarts 2 --requeue --ps 1",
}
ODD_WORDS = [
    "$x",
    "`x`",
    "~/x",
    "a\\",
    "it's",
    "*",
    "x\ny",
    "{index}",
]


@pytest.mark.parametrize("name", OPTION_SETS)
def test_sbatch_accepts(
    real_slurm: SlurmCluster, tmp_path: Path, name: str, capsys: Captured
) -> None:
    command = shlex.join(["python", "train.py", *ODD_WORDS])
    (tmp_path / "train.sbatch").write_text(printed_batch_file(OPTION_SETS[name], command, capsys))
    real_slurm.run("sbatch --test-only train.sbatch", cwd=tmp_path)


@pytest.mark.newest
@pytest.mark.slurm
@pytest.mark.needs("shellcheck")
def test_shellcheck_accepts(tmp_path: Path, capsys: Captured) -> None:
    files = [tmp_path / "guide.sbatch"]
    files[0].write_text(guide_of_heterogeneous_jobs()[1])
    for name, options in OPTION_SETS.items():
        files.append(tmp_path / f"{name}.sbatch")
        files[-1].write_text(printed_batch_file(options, "python train.py --epochs 3", capsys))
    done = captured(["shellcheck", *files])
    assert (done.returncode, done.stdout) == (0, "")


# Replaces sbatch --wait, which checks only every 10 s.
SUBMIT = """\
job=$(sbatch --parsable --output="$PWD/out-%a" OPTIONS train.sbatch)
while squeue --noheader --jobs="$job" | grep --quiet .; do sleep 0.1; done
scontrol --oneliner show job "$job" | grep --only-matching ' JobState=[A-Z]*'"""


def submitted(slurm: SlurmCluster, folder: Path, text: str, options: str = "") -> str:
    """Runs the batch file to its end, and returns the job's output."""
    (folder / "train.sbatch").write_text(text)
    done = slurm.run(
        SUBMIT.replace("OPTIONS", options),
        cwd=folder,
        env=ENVIRONMENT,
    )
    output = "".join(path.read_text() for path in sorted(folder.glob("out-*")))
    assert "JobState=COMPLETED" in done.stdout, output
    return output


SHOW = """\
import os, sys
sys.stderr.write("x.cc:1] oneDNN custom operations are on\\nwarning\\n")
print(os.environ["SLURMD_NODENAME"], os.environ["TF_CONFIG"])"""


def configs(output: str) -> dict[int, Fields]:
    """Returns the TF_CONFIG that each rank printed."""
    found = re.findall(r"^(\d+): \w+ (\{.*\})$", output, re.M)
    return {int(rank): json.loads(config) for rank, config in found}


def test_it_runs_the_preflight_and_then_the_program(
    real_slurm: SlurmCluster, tmp_path: Path, capsys: Captured
) -> None:
    command = "slurm-resolver exec --jobs chief=1,ps=2,worker=-1 -- python -c"
    output = submitted(
        real_slurm,
        tmp_path,
        printed_batch_file(
            "-N 2 --tasks-per-node 2 -c 2 --gpus-per-node 2 --ps 2",
            f"{command} {shlex.quote(SHOW)}",
            capsys,
        ),
        f"-w n9,n10 --error={tmp_path}/errors",
    )
    errors = (tmp_path / "errors").read_text().splitlines()
    # The check may still hold the nodes.
    errors = [
        line for line in errors if not re.match(r"srun: (Job \d+ step creation|Step created)", line)
    ]
    assert sorted(errors) == [f"{rank}: warning" for rank in range(4)]  # no TensorFlow notes
    assert re.search(r"^0: check: \d+ ok(, \d skipped)? \(", output, re.M)  # no warnings
    found = configs(output)
    assert sorted(found) == [0, 1, 2, 3]
    cluster = found[0]["cluster"]
    assert {name: len(hosts) for name, hosts in cluster.items()} == {
        "chief": 1,
        "ps": 2,
        "worker": 1,
    }
    assert {host.partition(":")[0] for host in cluster["ps"]} == {"n9", "n10"}
    assert all(config["cluster"] == cluster for config in found.values())
    assert output.index("check: ") < output.index("cluster")


def guide_of_heterogeneous_jobs() -> tuple[str, str]:
    """Returns the guide's program, and its batch file."""
    page = ROOT / "docs" / "heterogeneous.md"
    (program,) = texts_of(page, "python")
    (text,) = texts_of(page, "bash")
    return program, text


def test_the_heterogeneous_job_of_the_guide(real_slurm: SlurmCluster, tmp_path: Path) -> None:
    program, text = guide_of_heterogeneous_jobs()
    program = program.replace("SlurmClusterResolver", "cluster = slurm_resolver.resolve")
    shows = "print('here', json.dumps(cluster.tf_config()))"
    (tmp_path / "train.py").write_text(f"import json, slurm_resolver\n{program}{shows}\n")
    (tmp_path / "train.sbatch").write_text(text)
    output = submitted(real_slurm, tmp_path, text)
    assert re.search(r"^\d: check: \d+ ok", output, re.M)
    found = configs(output)
    assert [found[rank]["task"]["type"] for rank in range(4)] == ["worker"] * 4
    assert [found[rank]["task"]["type"] for rank in range(4, 7)].count("ps") == 2
    hosts = found[0]["cluster"]
    nodes = {name: {host.partition(":")[0] for host in hosts[name]} for name in hosts}
    assert nodes["worker"].isdisjoint(nodes["ps"] | nodes["chief"])
    assert [len(hosts[name]) for name in ("worker", "ps", "chief")] == [4, 2, 1]


# Two nodes for these tests only, so that a requeued job gets its nodes again.
small_slurm = slurm_of(numbered(1, 2))


# Rank 0 ends first with status 75, which must not end rank 1 before it has saved.
TASK = """\
echo "start ${SLURM_ARRAY_TASK_ID-} ${SLURM_RESTART_COUNT:-0}"
[ "${SLURM_RESTART_COUNT:-0}" -lt "$1" ] || exit 0
[ "$SLURM_PROCID" = 0 ] || { sleep 0.5; echo saved; }
exit 75"""


def test_status_75_is_a_requeue(
    small_slurm: SlurmCluster, tmp_path: Path, capsys: Captured
) -> None:
    output = submitted(
        small_slurm,
        tmp_path,
        printed_batch_file(
            "-N 2 --requeue --no-check",
            shlex.join(["bash", "-c", TASK, "bash", "1"]),
            capsys,
        ),
    )
    assert [output.count(line) for line in ("start  0", "start  1", "saved")] == [2, 2, 1]


MEETS = (
    "import signal, slurm_resolver as sr; from slurm_resolver.coordination.client import connect; "
    "connect(sr.resolve().service); signal.pause()"
)


@pytest.mark.root  # an ordinary account may not read the environment of tasks in a namespace
def test_without_munge_the_file_makes_a_secret_that_status_finds(
    real_slurm: SlurmCluster, tmp_path: Path, capsys: Captured
) -> None:
    environment = {**ENVIRONMENT, MUNGE_SOCKET_VARIABLE: "/nowhere"}
    (tmp_path / "job").write_text(
        printed_batch_file("-N 2 -t 5", shlex.join(["python", "-c", MEETS]), capsys)
    )
    job = real_slurm.run(
        "sbatch --parsable -o out job", cwd=tmp_path, env=environment
    ).stdout.strip()
    status = f"slurm-resolver status {job}"
    try:
        wait_for(
            lambda: (
                "no worker reports yet"
                in real_slurm.run(status, env=environment, status=None).stdout
            ),
            explain=lambda: read(tmp_path / "out"),
        )
        stranger = {**environment, VARIABLE: "guessed by another user"}
        refused = real_slurm.run(status, env=stranger, status=1).stderr
        assert "no coordination service answers in a step of job" in refused
    finally:
        real_slurm.run(f"scancel {job}")
    assert VARIABLE not in read(tmp_path / "out")
