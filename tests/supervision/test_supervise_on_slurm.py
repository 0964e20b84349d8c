"""`slurm-resolver supervise` restarts steps on a real Slurm. All jobs run at once."""

from __future__ import annotations

import itertools
import re
import shlex
from pathlib import Path
from typing import NamedTuple

import pytest
from kinds import Strings
from slurm_cluster import SlurmCluster
from slurm_conf import numbered
from slurm_fixture import slurm_of
from slurm_jobs import ENDS, ENVIRONMENT, await_jobs, read, shown_jobs, wait_for

# Every task creates a file for each of its starts, and by default ends with status 0. With `fail
# RANK COMMAND`, this rank fails once, and all other tasks wait for that.
TASK = """\
touch start-$SLURM_PROCID-$SLURM_STEP_ID-$SLURMD_NODENAME
await() { until [ -e "$1" ]; do sleep 0.1; done; }
fail() {
    [ ! -e failed ] || return 0
    [ "$SLURM_PROCID" = "$1" ] || { await failed; exec sleep 600; }
    await go; touch failed; shift; "$@"; exit
}
"""
RESOLVE = """\
import slurm_resolver
from slurm_resolver.start.ready import wait_until_ready
cluster = slurm_resolver.resolve()
wait_until_ready(cluster, 60)
print("ready", cluster.task.address, *sorted({task.node for task in cluster.tasks}))"""


class Case(NamedTuple):
    """A job on separate nodes, which are called A, B and C here.

    Attributes:
        nodes: the number of nodes.
        options: options of supervise. The step has two tasks on each node.
        task: lines of bash after those of TASK.
        action: the command that runs once all tasks have started. JOB is the job's id.
        lines: patterns of the lines that supervise prints.
        starts: the nodes that had tasks, by start.
        state: the job's last state and exit status.
        restarts: how often the job is requeued.
        batch: the lines of the batch file; for PRINTED those of `slurm-resolver sbatch`.
    """

    nodes: int
    options: str
    task: str
    lines: tuple[str, ...]
    starts: tuple[str, ...]
    action: str = "true"
    state: str = "COMPLETED 0:0"
    batch: str = "SUPERVISE -- srun --label --kill-on-bad-exit=1 bash task"
    restarts: int = 0


def failing(rank: int, *command: str) -> str:
    """Returns the line of a task that makes this rank fail once."""
    return f"fail {rank} {shlex.join(command)}\n"


PRINTED = "slurm-resolver sbatch --no-check --requeue --nodes 2 --tasks-per-node 2 --restarts 3"
# Waits until the step has ended and the pause before the restart has begun.
PAUSED = "until grep -q 'task 3: Killed' out; do sleep 0.1; done"
KILLED = failing(3, "bash", "-c", "kill -9 $PPID")
# Rank 3 breaks something; then rank 0 fails.
STUCK = """\
[ ! -e broken ] || exit 0
[ "$SLURM_PROCID" != 3 ] || {{ await go; touch broken; {}; }}
await broken; sleep 1
[ "$SLURM_PROCID" != 0 ] || exit 3
exec sleep 60
"""
DOWN = "scontrol update NodeName=B State=DOWN Reason=test"
CASES = {
    "killed": Case(
        2,
        "--nodes 2",
        KILLED,
        (
            r"restart 1 of 3; now on A,B; first failure: rank 3 on B at \S+, Killed",
            "ended with status 0, after 1 restart",
        ),
        ("AB", "AB"),
    ),
    "preempted in the pause": Case(
        2,
        "--pause 10",
        KILLED,
        (
            "not started again: Slurm is preempting the job; exit status 75 .*",
            "first failure: rank 3 on B .*, Killed",
        ),
        ("AB",),
        f"touch go; {PAUSED}\nsbatch -p urgent -N2 -w A,B --exclusive -o urgent --wrap true",
        restarts=1,
        batch=PRINTED,
    ),
    "down, replaced by a spare": Case(
        3,
        "--nodes 2 --watch 5",
        f"[ ! -e go ] || exec python -c {shlex.quote(RESOLVE)}; exec sleep 600\n",
        (
            "restart 1 of 3; now on A,C, without B .no longer the job's.; .*",
            "ended with status 0, after 1 restart",
        ),
        ("AB", "AC"),
        DOWN,
    ),
    "scancel while it restarts": Case(
        2,
        "--nodes 2 --pause 600",
        KILLED,
        ("not started again: received SIGTERM", "first failure: rank 3 on B .*"),
        ("AB",),
        "touch go; until grep -q 'task 3: Killed' out; do sleep 0.1; done; scancel JOB",
        "CANCELLED 0:15",
    ),
    "a signal": Case(
        2,
        "--nodes 2",
        "trap 'exit 75' USR1; touch trapped-$SLURM_PROCID; sleep 600 & wait\n",
        ("not started again: received SIGUSR1", "first failure: .*, Exited with exit code 75"),
        ("AB",),
        "for rank in 0 1 2 3; do until [ -e trapped-$rank ]; do sleep 0.1; done; done\n"
        "scancel --batch --signal=USR1 JOB",
        "FAILED 75:0",
        "exec SUPERVISE -- srun --label bash task",
    ),
    # Nobody can end this step for Slurm before the job ends.
    "a slurmstepd is killed": Case(
        3,
        "--nodes 2",
        STUCK.format("kill -9 $PPID; exit"),
        (
            r"restart 1 of 3; now on A,C, without B \(holds the former step\); .* rank 0 on A .* 3",
            "ended with status 0, after 1 restart",
        ),
        ("AB", "AC"),
    ),
    "srun is killed": Case(
        2,
        "--nodes 2",
        STUCK.format(
            "kill -9 $(scontrol show step $SLURM_JOB_ID.$SLURM_STEP_ID | sed -n 's/.*Pid=.*://p')"
        ),
        (
            r"restart 1 of 3; now on A,B; first failure: srun at \S+, exit status 137",
            "ended with status 0, after 1 restart",
        ),
        ("AB", "AB"),
    ),
    "srun ends no other task, in an array": Case(
        2,
        "--nodes 2",
        failing(1, "bash", "-c", "exit 5"),
        (
            r"restart 1 of 3; .* rank 1 on A at \S+, Exited with exit code 5",
            "ended with status 0, after 1 restart",
        ),
        ("AB", "AB"),
        batch="#SBATCH --array=7\nSUPERVISE -- srun --label --kill-on-bad-exit=0 bash task",
    ),
}
# The number of each case's first node, and in the end the number of nodes.
STARTS = list(itertools.accumulate((case.nodes for case in CASES.values()), initial=0))
FIRST = dict(zip(CASES, STARTS))
NODES = numbered(0, STARTS[-1] - 1, cpus=2)

CONF = [
    "PreemptType=preempt/partition_prio",
    "PreemptMode=REQUEUE",
    "PartitionName=low Nodes=ALL PriorityTier=1 GraceTime=600",
    "PartitionName=urgent Nodes=ALL PriorityTier=9 PreemptMode=OFF",
]


class Ended(NamedTuple):
    """A job that has ended: its state and exit status, restarts, output and starts."""

    state: str
    restarts: str
    output: str
    starts: Strings


def in_letters(name: str, text: str) -> str:
    """Replaces the case's nodes in a text by A, B and C."""
    for i, letter in list(enumerate("ABC"))[: CASES[name].nodes]:
        text = re.sub(rf"\bn{FIRST[name] + i}\b", letter, text)
    low = FIRST[name]
    text = text.replace(f"n[{low}-{low + 1}]", "A,B")
    return text.replace(f"n[{low},{low + 2}]", "A,C")


def in_nodes(name: str, text: str) -> str:
    """Replaces A, B and C in a text by the case's nodes."""
    return re.sub(r"\b[ABC]\b", lambda match: f"n{FIRST[name] + 'ABC'.index(match[0])}", text)


SUBMIT = "sbatch --parsable --ntasks-per-node=2 --no-kill --requeue --open-mode=append -o out"
SUPERVISE = "slurm-resolver supervise --ntasks-per-node 2 --pause 0.1"


def submit(slurm: SlurmCluster, folder: Path, name: str) -> str:
    """Submits the job of a case, and returns its id."""
    case = CASES[name]
    folder.mkdir()
    (folder / "task").write_text(TASK + case.task)
    options = case.options if "--watch" in case.options else f"{case.options} --watch 0"
    batch = case.batch.replace("SUPERVISE", f"{SUPERVISE} {options}")
    if batch.startswith(PRINTED):
        batch = slurm.run(f"{batch} -- bash task", env=ENVIRONMENT).stdout
        batch = batch.replace("resolver supervise ", f"resolver supervise {options} ")
        batch = f"#SBATCH --partition=low\n{batch}"
    (folder / "job").write_text(f"#!/bin/bash\n{batch}\n")
    nodes = f"-N{case.nodes} -w n[{FIRST[name]}-{FIRST[name] + case.nodes - 1}]"
    return slurm.run(
        f"{SUBMIT} {nodes} job",
        cwd=folder,
        env=ENVIRONMENT,
    ).stdout.strip()


many_nodes = slurm_of(NODES, CONF)


@pytest.fixture(scope="module")
def jobs(many_nodes: SlurmCluster, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Ended]:
    """The jobs of all cases, after they have ended."""
    top = tmp_path_factory.mktemp("supervise")
    folders = {name: top / str(i) for i, name in enumerate(CASES)}
    ids = {name: submit(many_nodes, folders[name], name) for name in CASES}

    def has_started(name: str) -> bool:
        return len(list(folders[name].glob("start-*"))) >= 4

    def act(name: str) -> None:
        action = in_nodes(name, CASES[name].action.replace("JOB", ids[name]))
        many_nodes.popen(f"{{ {action}\n}} && touch go", cwd=folders[name])

    ended = await_jobs(many_nodes, ids, folders, has_started, act)
    return {
        name: Ended(
            f"{job['JobState']} {job['ExitCode']}",
            job["Restarts"],
            in_letters(name, read(folders[name] / "out")),
            [in_letters(name, path.name) for path in folders[name].glob("start-*")],
        )
        for name, (job,) in ended.items()
    }


def nodes_by_start(starts: Strings) -> Strings:
    """Returns the nodes that had tasks, by step; each rank must have started once per step."""
    steps: dict[int, list[tuple[int, str]]] = {}
    for name in starts:
        _, rank, number, node = name.split("-")
        steps.setdefault(int(number), []).append((int(rank), node))
    found = []
    for step in sorted(steps):
        assert sorted(rank for rank, _ in steps[step]) == list(range(len(steps[step])))
        found.append("".join(sorted({node for _, node in steps[step]})))
    return found


@pytest.mark.parametrize("name", CASES)
def test_a_step_is_started_again_where_that_is_worth_it(jobs: dict[str, Ended], name: str) -> None:
    case = CASES[name]
    ended = jobs[name]
    said = re.findall(r"^slurm-resolver supervise: (.*)$", ended.output, re.M)
    assert len(said) == len(case.lines), ended.output
    for line, pattern in zip(said, case.lines):
        assert re.fullmatch(pattern, line), f"{line}\n{ended.output}"
    assert nodes_by_start(ended.starts) == list(case.starts), ended.output
    assert (ended.state, ended.restarts) == (case.state, str(case.restarts)), ended.output


def test_a_second_step_is_a_cluster_of_its_own(jobs: dict[str, Ended]) -> None:
    ready = re.findall(
        r"^\d: ready (\S+):(\d+) (.*)$",
        jobs["down, replaced by a spare"].output,
        re.M,
    )
    assert sorted(node for node, _, _ in ready) == ["A", "A", "C", "C"]
    assert {nodes for _, _, nodes in ready} == {"A C"}


LOST = """\
#!/bin/bash
[ "${SLURM_RESTART_COUNT:-0}" = 0 ] || exit 0
SUPERVISE --nodes 2 --requeue --watch 1 -- srun --label bash -c '
    [ ! -e again ] || exit 0; touch $SLURM_PROCID-$SLURMD_NODENAME; exec sleep 600'
"""


five_nodes = slurm_of(numbered(1, 5, cpus=2), ["SlurmdTimeout=10"])


@pytest.mark.newest
@pytest.mark.root
def test_nodes_that_vanish(five_nodes: SlurmCluster, tmp_path: Path) -> None:
    """A spare node replaces a step's lost node. Losing the batch file's node requeues the job."""
    ids = []
    for folder, names in (
        (tmp_path / "spare", "n[1-3]"),
        (tmp_path / "batch", "n[4-5] --array=7"),
    ):
        folder.mkdir()
        (folder / "job").write_text(LOST.replace("SUPERVISE", SUPERVISE))
        ids.append(
            five_nodes.run(
                f"{SUBMIT} -w {names} job",
                cwd=folder,
                env=ENVIRONMENT,
            ).stdout.strip()
        )
    wait_for(lambda: len(list(tmp_path.glob("*/[0-3]-n*"))) == 8)
    (tmp_path / "spare" / "again").touch()
    # each job has its step, its batch file, and a step that watches the batch file
    wait_for(lambda: len(five_nodes.run("squeue --noheader --steps").stdout.splitlines()) == 6)
    for name in ("n2", "n4"):
        five_nodes.run_on(name, "ip link set eth0 down")

    wait_for(lambda: shown_jobs(five_nodes)[ids[1]][0]["Restarts"] == "1")
    wait_for(lambda: shown_jobs(five_nodes)[ids[0]][0]["JobState"] in ENDS)
    said = [read(tmp_path / name / "out") for name in ("spare", "batch")]
    assert shown_jobs(five_nodes)[ids[0]][0]["JobState"] == "COMPLETED", said
    assert re.search(
        r"restart 1 of 3; now on n\[1,3\], without n2 \(no longer the job's\); "
        r"first failure: node n2 at \S+, node failure\n",
        said[0],
    ), said[0]
    assert (
        said[1].count(
            "slurm-resolver supervise: n4, the node of the batch file, has failed: "
            "the job is requeued"
        )
        == 1
    ), said[1]


four_nodes = slurm_of(numbered(1, 4, cpus=2))


@pytest.mark.root
def test_nodes_that_are_silent_before_slurm_notices(
    four_nodes: SlurmCluster, tmp_path: Path
) -> None:
    """Spare nodes replace one that is dead before the job, and one that falls silent."""
    task = "[ ! -e go ] || exit 0; touch $SLURM_PROCID; until [ -e go ]; do sleep 0.1; done; exit 3"
    four_nodes.run_on("n4", "ip link set eth0 down")
    four_nodes.run(
        "slurm-resolver sbatch -t 5 -N 2 --spare-nodes 2 --restarts 3 -- "
        f"bash -c {shlex.quote(task)} | sbatch -o out",
        cwd=tmp_path,
        env=ENVIRONMENT,
    )
    wait_for(lambda: len(list(tmp_path.glob("[01]"))) == 2)
    four_nodes.run_on("n2", "ip link set eth0 down")
    (tmp_path / "go").touch()
    wait_for(lambda: read(tmp_path / "out").count("ended with status 0") == 2, 300)
    said = re.findall("; now on (.*?[)])", read(tmp_path / "out"))
    assert said == ["n[1-3], without n4 (failed)", "n[1,3], without n2 (holds the former step)"]


two_nodes = slurm_of(numbered(1, 2, cpus=2))
FAILS_ONCE = """\
touch start-$SLURM_PROCID; until [ -e go ]; do sleep 0.1; done
[ -e again ] || [ "$SLURM_PROCID" = 0 ] || exit 3
"""


@pytest.mark.nightly
def test_an_outage_of_the_controller_costs_no_node(two_nodes: SlurmCluster, tmp_path: Path) -> None:
    """It begins before a task fails, and ends after slurmstepd has tried to report the step's end.

    slurmstepd tries again 60 s later. Until then, the controller does not know that the step has
    ended, and says that its nodes hold it.
    """
    (tmp_path / "task").write_text(FAILS_ONCE)
    (tmp_path / "job").write_text(
        "#!/bin/bash\n"
        "slurm-resolver supervise --watch 0 -- srun --label --kill-on-bad-exit=0 bash task\n"
    )
    job = two_nodes.run(
        "sbatch --parsable -N2 -n2 -o out job", cwd=tmp_path, env=ENVIRONMENT
    ).stdout.strip()
    wait_for(lambda: len(list(tmp_path.glob("start-*"))) == 2)
    saved = two_nodes.directory / "state" / "job_state"
    before = saved.stat().st_mtime_ns if saved.exists() else 0
    two_nodes.run(f"scontrol update JobId={job} Comment=x")
    wait_for(lambda: saved.exists() and saved.stat().st_mtime_ns > before)
    two_nodes.run("pkill -KILL -x slurmctld")
    (tmp_path / "go").touch()
    log = two_nodes.directory / "log"
    said = "failed sending step completion message directly to slurmctld"
    wait_for(lambda: said in read(log / "slurmd-n1.log"))
    (tmp_path / "again").touch()
    two_nodes.popen(f"exec slurmctld -D -f {two_nodes.directory}/slurm.conf &> {log}/again.out")

    wait_for(lambda: "ended with status" in read(tmp_path / "out"), 300)
    said = read(tmp_path / "out")
    assert "restart 1 of 3; now on n[1-2]; first failure: rank 1 on n2 at" in said
    assert "ended with status 0, after 1 restart" in said
