"""`resolver.serve()` with real TensorFlow on the real Slurm: every task ends, and in time.

No job here is ended by Slurm: without `--kill-on-bad-exit`, srun waits for every task.
"""

from __future__ import annotations

import contextlib
import os
import shlex
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any, Callable, Dict, Iterator, Mapping, Optional, Sequence, Tuple

import pytest
from network_faults import packets_dropped
from served_jobs import NODES, Job, last_end, statuses
from slurm_cluster import SlurmCluster
from task_variables import TASK

import slurm_resolver as sr

pytestmark = pytest.mark.tensorflow

# Seconds until all have ended, after those who train have, and after a fault. It takes some 5 where
# nothing else runs; here other tests do, and a task that hangs does so for ever.
FINISHED = 30.0
FAILED = 45.0


Start = Callable[..., Job]


@pytest.fixture
def start(real_slurm: SlurmCluster, tmp_path: Path) -> Iterator[Start]:
    started = []

    def one(tasks: int, options: str, **env: str) -> Job:
        started.append(Job(real_slurm, tmp_path, "slurm_serve.py", tasks, options, **env))
        return started[-1]

    yield one
    for job in started:
        if job.process.poll() is None:
            job.end()


@pytest.mark.slurm
@pytest.mark.parametrize("options", ["", "--keras"])
def test_a_strategy_goes_on_without_a_worker_and_all_end_with_it(
    start: Start, options: str
) -> None:
    job = start(4, options)
    job.await_steps()
    job.kill("worker-1", 3)
    time.sleep(3)  # a process that ended may be followed by another one for 2 s
    job.await_steps(20)
    (job.output / "STOP").touch()
    _, errors = job.await_end(FINISHED)
    assert statuses(job) == {0: 0, 1: 0, 2: 0, 3: 128 + signal.SIGKILL}
    assert last_end(job) - job.ends()[0][1] < FINISHED
    assert "worker 1 (rank 3 on n11) is lost, the others go on" in errors


EXEC = shlex.join([sys.executable, "-m", "slurm_resolver", "exec", "--wait=90"])
JOBS = "--jobs chief=1,ps=1,worker=-1"


@pytest.mark.slurm
@pytest.mark.newest
@pytest.mark.parametrize("options", ["", "--keras"])
def test_a_worker_that_is_started_again_is_taken_back(start: Start, options: str) -> None:
    """There is no other worker that could do the steps."""
    job = start(3, options, BEFORE=f"{EXEC} {JOBS} --restart-workers 1 --")
    job.await_steps()
    pid = (job.output / "worker-0.pid").read_text()
    job.kill("worker-0", 2)
    job.until(lambda: (job.output / "worker-0.pid").read_text() != pid, 90)
    job.await_steps(20)
    (job.output / "STOP").touch()
    _, errors = job.await_end(FINISHED)
    assert statuses(job) == dict.fromkeys(range(3), 0)
    assert (
        "slurm_resolver: worker 0 (rank 2 on n10) ended with SIGKILL; restart 1 of at most 1 in "
    ) in errors


@pytest.mark.slurm
@pytest.mark.newest
def test_no_worker_is_started_again_for_a_chief_that_is_lost(start: Start) -> None:
    job = start(3, "", BEFORE=f"{EXEC} {JOBS} --restart-workers 5 --")
    job.await_steps()
    job.kill("chief-0", 0)
    _, errors = job.await_end(FAILED)
    assert statuses(job) == {0: 128 + signal.SIGKILL, 1: 1, 2: 1}
    assert "restart" not in errors


# what happens to whom; how many tasks with which options; who must say what
FAULTS: Dict[str, Tuple[Optional[Tuple[str, int]], int, str, str]] = {
    "the coordinator is killed": (
        ("chief-0", 0),
        3,
        "",
        "{} (rank {} on {}): chief 0 (rank 0 on n8) is lost: its process has ended",
    ),
    "the second ps is killed": (
        ("ps-1", 2),
        4,
        "--ps 2",
        "{} (rank {} on {}): ps 1 (rank 2 on n10) is lost, and its variables with it: its process",
    ),
    "the second ps of Keras' fit is killed": (
        ("ps-1", 2),
        4,
        "--ps 2 --keras",
        "{} (rank {} on {}): ps 1 (rank 2 on n10) is lost, and its variables with it: its process",
    ),
    "the first legacy worker is killed": (
        ("worker-0", 1),
        3,
        "--legacy",
        "{} (rank {} on {}): worker 0 (rank 1 on n9) has failed: its process has ended",
    ),
}


@pytest.mark.newest
@pytest.mark.slurm
@pytest.mark.parametrize("fault", FAULTS)
def test_a_fault_ends_all_and_all_say_which(start: Start, fault: str) -> None:
    victim, tasks, options, told = FAULTS[fault]
    job = start(tasks, options)
    if "--legacy" in options:  # one that starts later would wait for who is gone by then
        job.until(lambda: len(list(job.output.glob("worker-*.trains"))) == tasks - 1, 90)
    # and so would one whose server answers already, and whose monitor does not yet
    job.await_steps(50 if victim is not None else 3)
    began = time.time()
    if victim is not None:
        job.kill(*victim)
    _, errors = job.await_end(FAILED)
    assert len(job.ends()) == tasks
    assert 0 not in statuses(job).values()
    assert last_end(job) - began < FAILED
    killed = [rank for rank, status in statuses(job).items() if status == 128 + signal.SIGKILL]
    assert killed == ([victim[1]] if victim is not None else [])
    names = {
        False: ["chief 0", *(["ps 0", "ps 1"] if "--ps" in options else ["ps 0"]), "worker 0"],
        True: ["ps 0", "worker 0", "worker 1"],
    }["--legacy" in options]
    for rank, name in enumerate(names):
        if rank not in killed and name != "chief 0":  # its own error may be first
            assert told.format(name, rank, NODES[rank]) in errors, errors


@pytest.mark.slurm
def test_a_node_that_vanishes(start: Start) -> None:
    """The chief's node is cut off: nobody gets a word from it, nor it from them."""
    job = start(3, "", SLURM_RESOLVER_NETWORK_GRACE="6")
    job.await_steps()
    began = time.time()
    job.slurm.run_on("n8", "ip link set eth0 down")
    try:
        job.until(lambda: len(job.ends()) == 3, FAILED + 10)
    finally:
        job.slurm.run_on("n8", "ip link set eth0 up")
        job.end()
    errors = job.errors()
    assert set(statuses(job).values()) == {1}
    assert max(job.ends()[rank][1] for rank in (1, 2)) - began < FAILED
    told = "chief 0 (rank 0 on n8) is lost: its node has not answered for 6 s"
    assert f"ps 0 (rank 1 on n9): {told}" in errors
    assert f"worker 0 (rank 2 on n10): {told}" in errors
    assert "is lost, and its variables with it: its node has not answered for 6 s" in errors


@contextlib.contextmanager
def cut_off(job: Job, node: str, others: Sequence[str]) -> Iterator[None]:
    """Lets no packet pass between a node and others."""
    with contextlib.ExitStack() as stack:
        for other in others:
            stack.enter_context(packets_dropped(job.slurm, node, other))
            stack.enter_context(packets_dropped(job.slurm, other, node))
        yield


@pytest.mark.slurm
@pytest.mark.newest
def test_gaps_of_the_network_end_nothing(start: Start) -> None:
    """First a short one, then one in which the service's connections are destroyed as well."""
    job = start(4, "--ps 2")
    job.await_steps()
    with cut_off(job, "n11", ["n8"]):
        time.sleep(5)
    job.await_steps(20)
    port = (job.output / "service.port").read_text()
    with cut_off(job, "n8", ["n9", "n10", "n11"]):
        destroyed = job.slurm.run_on("n8", f"ss -Kn state established sport = :{port}").stdout
        time.sleep(12)
    assert destroyed.count(f":{port}") == 4, destroyed
    job.await_steps(20)
    (job.output / "STOP").touch()
    _, errors = job.await_end(FINISHED)
    assert statuses(job) == dict.fromkeys(range(4), 0)
    assert "slurm_resolver:" not in errors


@pytest.mark.slurm
def test_legacy_servers_end_with_the_last_worker(start: Start) -> None:
    job = start(4, "--legacy --ps 2 --steps 20")
    job.await_end(90)
    assert statuses(job) == dict.fromkeys(range(4), 0)
    trained = max(job.ends()[rank][1] for rank in (2, 3))
    assert last_end(job) - trained < FINISHED


CANNOT_SERVE: Dict[str, Tuple[Any, Mapping[str, str], str]] = {
    "no ps": (None, {}, "serve() in worker 1 of a cluster with the jobs worker; expected a ps"),
    "a worker that trains": ({"ps": 1, "worker": -1}, {}, "serve() in worker 0, which trains"),
    "the chief": (
        {"chief": 1, "ps": 1, "worker": -1},
        {"SLURM_PROCID": "0"},
        "serve() in chief 0, which trains; expected a ps, a dispatcher, a data_worker, or a worker",
    ),
}


@pytest.mark.parametrize("case", CANNOT_SERVE)
def test_who_cannot_serve_is_told_who_can(case: str, monkeypatch: pytest.MonkeyPatch) -> None:
    jobs, variables, told = CANNOT_SERVE[case]
    for name, value in {**TASK, **variables}.items():
        monkeypatch.setenv(name, value)
    resolver = sr.SlurmClusterResolver(jobs)
    with pytest.raises(sr.JobsError) as caught:
        resolver.serve()
    assert told in str(caught.value)


SECOND = """
import subprocess, sys, slurm_resolver as sr
resolver = sr.SlurmClusterResolver({"ps": 1, "worker": -1})
if len(sys.argv) > 1:
    try:
        resolver.serve()
    except sr.JobsError as error:
        sys.exit(str(error))
if resolver.task_type == "ps":
    done = subprocess.run([sys.executable, sys.argv[0], "child"], capture_output=True, text=True)
    print(done.returncode, done.stderr)
    sys.exit(resolver.serve())
"""


def test_a_second_process_of_a_task_cannot_serve(tmp_path: Path) -> None:
    """Its resolver is made as any other; the task itself goes on."""
    program = tmp_path / "program.py"
    program.write_text(SECOND)
    run = [sys.executable, "-m", "slurm_resolver", "run", "-n", "2", "--"]
    done = subprocess.run(
        [*run, sys.executable, str(program)], capture_output=True, text=True, timeout=180
    )
    assert done.returncode == 0, done.stderr
    assert "0: 1 " in done.stdout
    assert "rank 0 is represented by process" in done.stdout
    assert "which still runs" in done.stdout


def test_without_slurm_there_is_nobody_to_serve() -> None:
    assert not any(name.startswith("SLURM_P") for name in os.environ)
    with pytest.raises(sr.JobsError, match=r"without a cluster: .* Start the program with srun"):
        sr.SlurmClusterResolver().serve()
