"""The tasks of a step meet on the real Slurm, with faults, late, stopped and killed tasks.

Ranks 0 and 1 run on n9, ranks 2 and 3 on n10; the coordination service runs in rank 0. Planes are
known to every version of Slurm: the tasks meet only to be ready. The cases run beside each other,
as they mostly wait.
"""

from __future__ import annotations

import json
import shlex
import signal
import sys
import time
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any, Callable, Dict, Iterator, List, NamedTuple, Optional

import pytest
from folders import HELPERS
from network_faults import packets_dropped
from slurm_cluster import SlurmCluster

pytestmark = pytest.mark.slurm

TASK = shlex.join([sys.executable, str(HELPERS / "slurm_ready.py")])
STEP = "-w n9,n10 -N2 --ntasks-per-node=2 -m plane=2"
NAMES = [f"worker {r} (rank {r} on {node})" for r, node in enumerate(["n9"] * 2 + ["n10"] * 2)]
READY = None
UNREACHED = "the coordination service at n9:"
UNANSWERED = "it was reached, but its process is stopped, or its node is silent"
KILLED = "is gone, and takes no part in the start: its process has ended"


class Events:
    """What the tasks of a case do, and what is done to them."""

    def __init__(self, slurm: SlurmCluster, folder: Path) -> None:
        self.slurm = slurm
        self.folder = folder

    def await_all(self, *names: str) -> None:
        deadline = time.monotonic() + 60
        while not all((self.folder / name).exists() for name in names):
            assert time.monotonic() < deadline, (names, sorted(self.folder.iterdir()))
            time.sleep(0.02)

    def send(self, rank: int, sign: signal.Signals) -> None:
        pid = (self.folder / f"pid {rank}").read_text()
        self.slurm.run(f"kill -{sign.value} {pid}")

    def go(self) -> None:
        (self.folder / "go").touch()


Act = Callable[[Events], None]


def stop(rank: int, seconds: float, *came: int) -> Act:
    """Stops a task once others have come, or before it comes itself, while the last one comes."""

    def stopped(events: Events) -> None:
        events.await_all(*(f"pid {each}" for each in range(4)), *(f"came {each}" for each in came))
        events.send(rank, signal.SIGSTOP)
        events.go()
        time.sleep(seconds)
        events.send(rank, signal.SIGCONT)

    return stopped


def kill(rank: int) -> Act:
    def send(events: Events) -> None:
        events.await_all("came 0", "came 2", "came 3")
        events.send(rank, signal.SIGKILL)

    return send


def nothing(events: Events) -> None:
    pass


def missing(*ranks: int) -> str:
    count = f"{len(ranks)} of 4 tasks did not come to the start within "
    return f"{count}.*s: {', '.join(NAMES[rank] for rank in ranks)}. Look at their output"


def gap(seconds: float) -> Act:
    """Cuts n12 off from n11 for a while, during which the last task comes."""

    def cut(events: Events) -> None:
        events.await_all("came 2", "came 3")
        slurm = events.slurm
        with packets_dropped(slurm, "n11", "n12"), packets_dropped(slurm, "n12", "n11"):
            events.go()
            time.sleep(seconds)

    return cut


class Case(NamedTuple):
    """Options of the tasks, what is done to them, and by rank what each says; None is ready."""

    options: str
    act: Act
    told: Dict[int, Optional[str]]
    step: str = STEP


ALL_READY = dict.fromkeys(range(4), READY)
CASES = {
    "skewed starts": Case(
        """--timeout 90 --late '{"0": 13, "1": 30, "2": 21}'""", nothing, ALL_READY
    ),
    "service never": Case(
        """--timeout 6 --late '{"0": 12}'""", nothing, dict.fromkeys((1, 2, 3), UNREACHED)
    ),
    "service late, another never": Case(
        """--timeout 12 --late '{"0": 4, "2": 25}'""", nothing, dict.fromkeys((0, 1, 3), missing(2))
    ),
    "service stopped": Case(
        """--timeout 60 --late '{"3": null}'""", stop(0, 8, 0, 1, 2), ALL_READY
    ),
    "service stopped for too long": Case(
        """--timeout 8 --late '{"3": null}'""",
        stop(0, 18, 0, 1, 2),
        {1: UNANSWERED, 2: UNANSWERED, 3: UNREACHED},
    ),
    "stopped after it came": Case("""--late '{"1": null}'""", stop(2, 6, 2, 3), ALL_READY),
    "stopped before it comes": Case(
        """--timeout 10 --late '{"2": null}'""", stop(2, 18), dict.fromkeys((0, 1, 3), missing(2))
    ),
    "killed": Case(
        """--late '{"1": null}'""", kill(2), dict.fromkeys((0, 3), f"{NAMES[2]} {KILLED}")
    ),
    "service killed": Case(
        """--late '{"1": null}'""",
        kill(0),
        dict.fromkeys((2, 3), "(local rank 0 on n9) is gone, and takes no part in the start"),
    ),
    "a gap of the network": Case(
        """--timeout 90 --late '{"1": null}'""",
        gap(22),
        ALL_READY,
        STEP.replace("n9,n10", "n11,n12"),
    ),
    "a child that ends": Case("--fault forks --in-rank 0", nothing, ALL_READY),
    "other jobs": Case(
        "--fault 'other jobs' --in-rank 1",
        nothing,
        dict.fromkeys(range(4), "the tasks disagree on the jobs (argument jobs): "),
    ),
}
OLDEST = ("killed", "service late, another never", "other jobs")  # what also runs on older Slurms


def run(slurm: SlurmCluster, folder: Path, case: Case) -> Dict[int, Any]:
    """Runs the tasks; what came of each that was left to tell, by rank."""
    events, output = folder / "events", folder / "output"
    for each in (events, output):
        each.mkdir(parents=True)
    env = {"TASK_OUTPUT": str(output), "TASK_EVENTS": str(events)}
    with ThreadPoolExecutor(1) as pool:
        command = f"srun {case.step} {TASK} {case.options}"
        step_ends = pool.submit(slurm.run, command, env=env, check=False, timeout=150)
        try:
            case.act(Events(slurm, events))
            told = len(case.told)
            while len(list(output.iterdir())) < told and not step_ends.done():
                time.sleep(0.05)
        finally:
            (events / "stop").touch()
        printed = step_ends.result().stderr
    assert "Traceback" not in printed, printed
    found = [json.loads(path.read_text()) for path in output.iterdir()]
    return {outcome["rank"]: {**outcome, "printed": printed} for outcome in found}


@pytest.fixture(scope="module")
def running(
    real_slurm: SlurmCluster, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Dict[str, Future[Dict[int, Any]]]]:
    folder = tmp_path_factory.mktemp("meetings")
    with ThreadPoolExecutor(6) as pool:
        yield {
            name: pool.submit(run, real_slurm, folder / name.replace(" ", "-"), case)
            for name, case in CASES.items()
        }


@pytest.mark.newest
@pytest.mark.parametrize("name", CASES)
def test_what_each_task_says(running: Dict[str, Any], name: str) -> None:
    outcomes = running[name].result()
    for rank, told in CASES[name].told.items():
        error = outcomes[rank]["error"]
        assert (told is None) == (error is None), (rank, error, CASES[name].options)
        parts: List[str] = (told or "").split(".*")
        assert all(part in (error or "") for part in parts), (rank, error, CASES[name].options)


@pytest.mark.parametrize("name", OLDEST)
def test_on_every_slurm(real_slurm: SlurmCluster, tmp_path: Path, name: str) -> None:
    case = CASES[name]
    outcomes = run(real_slurm, tmp_path, case)
    for rank, told in case.told.items():
        assert all(part in outcomes[rank]["error"] for part in str(told).split(".*"))


@pytest.mark.newest
def test_two_jobs_on_the_same_nodes_at_once(real_slurm: SlurmCluster, tmp_path: Path) -> None:
    case = Case("", nothing, ALL_READY)
    with ThreadPoolExecutor(2) as pool:
        both = [pool.submit(run, real_slurm, tmp_path / str(n), case) for n in range(2)]
        for outcomes in (one.result() for one in both):
            assert {rank: each["error"] for rank, each in outcomes.items()} == ALL_READY


@pytest.mark.newest
def test_tasks_of_another_start_do_not_meet(real_slurm: SlurmCluster, tmp_path: Path) -> None:
    """As stragglers of a job that was requeued, which has the same ids and ports."""
    script = f"[ $SLURM_PROCID != 1 ] || export SLURM_RESTART_COUNT=1; exec {TASK} --timeout 6"
    step = f"srun {STEP} bash -c {shlex.quote(script)}"
    real_slurm.run(step, env={"TASK_OUTPUT": str(tmp_path)}, check=False)
    told = {int(path.name): json.loads(path.read_text())["error"] for path in tmp_path.iterdir()}
    for rank in (0, 2, 3):
        assert "1 of 4 tasks did not come" in told[rank]
        assert NAMES[1] in told[rank]
    assert "it belongs to another step, or another start" in told[1]


@pytest.mark.newest
def test_too_few_open_files_are_named_in_every_task(
    real_slurm: SlurmCluster, tmp_path: Path
) -> None:
    step = "-w n8,n9,n10,n11,n12 -N5 -n200 -m plane=40 -O"
    task = f"ulimit -n 64; exec {TASK} --timeout 150"
    env = {"TASK_OUTPUT": str(tmp_path)}
    command = f"srun {step} bash -c {shlex.quote(task)}"
    assert real_slurm.run(command, env=env, timeout=250).stderr == ""
    told = [json.loads(path.read_text())["error"] for path in tmp_path.iterdir()]
    assert len(told) == 200
    assert all("`ulimit -n` is 64 on n8: expected at least" in error for error in told), told


@pytest.mark.newest
def test_names_that_do_not_resolve(real_slurm: SlurmCluster, tmp_path: Path) -> None:
    case = Case("--timeout 6 --node-address=-nowhere", nothing, {})
    outcomes = run(real_slurm, tmp_path, case)
    for rank in (2, 3):
        assert "the coordination service at n9-nowhere:" in outcomes[rank]["error"]
        assert "name resolution" in outcomes[rank]["error"] or "known" in outcomes[rank]["error"]


@pytest.fixture
def only_ipv6(real_slurm: SlurmCluster) -> Iterator[SlurmCluster]:
    """Each of two nodes has a second name, which has an IPv6 address only."""
    hosts = real_slurm.directory / "hosts"
    before = hosts.read_text()
    names = {"n9": "fd77::9", "n10": "fd77::10"}
    with hosts.open("a") as file:  # the nodes have this very file as their own
        file.writelines(f"{address} {name}-v6\n" for name, address in names.items())
    for name, address in names.items():
        real_slurm.run_on(name, f"ip -6 addr add {address}/64 dev eth0 nodad")
    yield real_slurm
    for name, address in names.items():
        real_slurm.run_on(name, f"ip -6 addr del {address}/64 dev eth0")
    hosts.write_text(before)


@pytest.mark.newest
def test_nodes_that_have_ipv6_only(only_ipv6: SlurmCluster, tmp_path: Path) -> None:
    case = Case("--node-address=-v6", nothing, ALL_READY)
    outcomes = run(only_ipv6, tmp_path, case)
    assert {rank: outcome["error"] for rank, outcome in outcomes.items()} == ALL_READY
    check = shlex.join([sys.executable, "-m", "slurm_resolver", "check"])
    done = only_ipv6.run(f"srun {STEP} {check} --json --node-address=-v6", check=False)
    checks = {one["id"]: one for one in json.loads(done.stdout)["checks"]}
    for name in ("presence", "layout", "names", "ports", "reach"):
        assert checks[name]["status"] == "ok", checks[name]
