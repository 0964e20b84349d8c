"""The tasks meet on the real Slurm, while tasks are late, stopped, killed, or their network fails.

Ranks 0 and 1 run on n9, ranks 2 and 3 on n10; rank 0 is the meeting point, and rank 2 brings rank 3
along. The cases run beside each other, as they mostly wait.
"""

from __future__ import annotations

import json
import random
import shlex
import signal
import sys
import time
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any, Callable, Dict, Iterator, NamedTuple, Optional

import pytest
from folders import HELPERS
from network_faults import lossy, packets_dropped
from slurm_cluster import SlurmCluster

pytestmark = [pytest.mark.slurm, pytest.mark.newest]

TASK = shlex.join([sys.executable, str(HELPERS / "slurm_ready.py")])
STEP = "-w n9,n10 -N2 --ntasks-per-node=2 -m plane=2"
NAMES = [
    f"rank {rank} (worker {rank} on {node})" for rank, node in enumerate(["n9"] * 2 + ["n10"] * 2)
]
READY = None
UNREACHED = "could not reach the meeting point n9:"
UNANSWERED = "though it was reached: it has been stopped, or its node does not answer"
ENDED = "(local rank 0 on node n9) has ended before it answered"


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


ALL_CAME = [f"{rank} came to 0" for rank in (1, 2, 3)]


def stop_host(events: Events) -> None:
    """For longer than any step of the handshake, while rank 3 is still to come."""
    events.await_all("1 came to 0", "2 came to 0")
    events.send(0, signal.SIGSTOP)
    events.go()
    time.sleep(12)
    events.send(0, signal.SIGCONT)


def stop_host_past_the_deadline(events: Events) -> None:
    events.await_all("1 came to 0", "2 came to 0")
    events.send(0, signal.SIGSTOP)
    events.go()
    time.sleep(17)
    events.send(0, signal.SIGCONT)


def stop(rank: int) -> Callable[[Events], None]:
    def stop_until_the_others_end(events: Events) -> None:
        events.await_all("2 came to 0", "3 came to 0")
        events.send(rank, signal.SIGSTOP)
        events.go()
        time.sleep(16)
        events.send(rank, signal.SIGCONT)

    return stop_until_the_others_end


def stop_at_first(rank: int) -> Callable[[Events], None]:
    """Before it comes."""

    def stop_before(events: Events) -> None:
        events.await_all(*(f"pid {rank}" for rank in range(4)))
        events.send(rank, signal.SIGSTOP)
        events.go()
        time.sleep(16)
        events.send(rank, signal.SIGCONT)

    return stop_before


def end(rank: int, sign: signal.Signals) -> Callable[[Events], None]:
    def send(events: Events) -> None:
        events.await_all("2 came to 0", "3 came to 0")
        events.send(rank, sign)

    return send


def nothing(events: Events) -> None:
    pass


def missing(*ranks: int) -> str:
    names = ", ".join(NAMES[rank] for rank in ranks)
    return f"{names}. They have not started"


def silent(*ranks: int) -> str:
    return f"{', '.join(NAMES[rank] for rank in ranks)} came, and no longer answer"


def left(rank: int) -> str:
    return f": {NAMES[rank]} came and ended again"


def vanish(events: Events) -> None:
    """n12 is cut off once its tasks have come; the last task comes after that."""
    events.await_all("2 came to 0", "3 came to 0")
    slurm = events.slurm
    with packets_dropped(slurm, "n11", "n12"), packets_dropped(slurm, "n12", "n11"):
        time.sleep(10)
        events.go()
        time.sleep(8)


class Case(NamedTuple):
    """Options of the tasks, what is done to them, and by rank what each says; None is ready."""

    options: str
    act: Callable[[Events], None]
    told: Dict[int, Optional[str]]
    step: str = STEP


LOST = "rank 2 (worker 2 on n12), rank 3 (worker 3 on n12) came, and the connection was lost since."

ALL_READY = dict.fromkeys(range(4), READY)
LATE = {rank: round(random.uniform(0, 30), 1) for rank in range(4)}  # another one in each run
CASES = {
    "start at random times": Case(
        f"--timeout 90 --late {shlex.quote(json.dumps(LATE))}", nothing, ALL_READY
    ),
    "skew": Case("""--late '{"0": 3.1, "1": 0.4, "2": 2.2, "3": 1.3}'""", nothing, ALL_READY),
    "host last": Case("""--late '{"0": 6}'""", nothing, ALL_READY),
    "host never": Case(
        """--timeout 6 --late '{"0": 9}'""", nothing, {1: UNREACHED, 2: UNREACHED, 3: UNREACHED}
    ),
    "host late, another never": Case(
        """--timeout 10 --late '{"0": 6, "2": 17}'""",
        nothing,
        dict.fromkeys((0, 1, 3), missing(2)),
    ),
    "host stopped": Case("""--timeout 60 --late '{"3": null}'""", stop_host, ALL_READY),
    "host stopped for too long": Case(
        """--timeout 10 --late '{"3": null}'""",
        stop_host_past_the_deadline,
        {
            0: "Meanwhile rank 0 (worker 0 on n9), where they meet, did not run for",
            1: UNANSWERED,
            2: UNANSWERED,
            3: UNANSWERED,
        },
    ),
    "node's first task stopped": Case(
        """--timeout 10 --late '{"1": null}'""",
        stop(2),
        dict.fromkeys((0, 1, 2, 3), silent(2)),
    ),
    "node's other task stopped": Case(
        """--timeout 10 --late '{"1": null}'""", stop(3), dict.fromkeys(range(4), silent(3))
    ),
    "stopped before it comes": Case(
        """--timeout 10 --late '{"2": null}'""",
        stop_at_first(2),
        dict.fromkeys((0, 1, 3), missing(2)),
    ),
    "node that vanishes after its notes": Case(
        """--timeout 14 --late '{"1": null}'""",
        vanish,
        {0: LOST, 1: LOST, 2: "timed out", 3: "timed out"},
        STEP.replace("n9,n10", "n11,n12"),
    ),
    "node's first task killed": Case(
        """--late '{"1": null}'""", end(2, signal.SIGKILL), {0: left(2), 3: left(2)}
    ),
    "interrupt of the node's first task": Case(
        """--late '{"1": null}'""", end(2, signal.SIGINT), {0: left(2), 3: left(2)}
    ),
    "interrupt of the node's other task": Case(
        """--late '{"1": null}'""", end(3, signal.SIGINT), {0: left(3), 2: left(3)}
    ),
    "interrupt of the host": Case(
        """--late '{"1": null}'""", end(0, signal.SIGINT), {2: ENDED, 3: ENDED}
    ),
}


def run(slurm: SlurmCluster, folder: Path, case: Case) -> Dict[int, Any]:
    """Runs the tasks; what came of each that was left to tell, by rank."""
    events, output = folder / "events", folder / "output"
    for each in (events, output):
        each.mkdir(parents=True)
    env = {"TASK_OUTPUT": str(output), "TASK_EVENTS": str(events)}
    with ThreadPoolExecutor(1) as pool:
        command = f"srun {case.step} {TASK} {case.options}"
        step_ends = pool.submit(slurm.run, command, env=env, check=False, timeout=120)
        try:
            case.act(Events(slurm, events))
            told = len(case.told)
            while len(list(output.iterdir())) < told and not step_ends.done():
                time.sleep(0.05)
        finally:
            (events / "stop").touch()
        printed = step_ends.result().stderr
        assert "Traceback" not in printed or "KeyboardInterrupt" in printed
    found = [json.loads(path.read_text()) for path in output.iterdir()]
    return {outcome["rank"]: outcome for outcome in found}


@pytest.fixture(scope="module")
def running(
    real_slurm: SlurmCluster, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Dict[str, Future[Dict[int, Any]]]]:
    folder = tmp_path_factory.mktemp("meetings")
    with ThreadPoolExecutor(len(CASES)) as pool:
        yield {
            name: pool.submit(run, real_slurm, folder / name.replace(" ", "-"), case)
            for name, case in CASES.items()
        }


@pytest.mark.parametrize("name", CASES)
def test_what_each_task_tells(running: Dict[str, Any], name: str) -> None:
    outcomes = running[name].result()
    for rank, told in CASES[name].told.items():
        error = outcomes[rank]["error"]
        assert (told is None) == (error is None), (rank, error, CASES[name].options)
        assert told is None or told in error, (rank, error, CASES[name].options)


ROUND_TRIP = """
import socket, sys, time
started = time.monotonic()
socket.socket().connect_ex((sys.argv[1], 1))
print(time.monotonic() - started)
"""


def test_a_network_that_is_slow_and_loses_packets(real_slurm: SlurmCluster, tmp_path: Path) -> None:
    """200 ms there and back, and every twentieth packet is lost: they are ready all the same."""
    with lossy(real_slurm, "n10", 0.1, 0.05):
        took = real_slurm.run_on("n10", [sys.executable, "-c", ROUND_TRIP, "n9"]).stdout
        assert float(took) >= 0.2
        outcomes = run(real_slurm, tmp_path, Case("--timeout 60", nothing, ALL_READY))
    assert {rank: outcome["error"] for rank, outcome in outcomes.items()} == ALL_READY


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


def test_nodes_that_have_ipv6_only(only_ipv6: SlurmCluster, tmp_path: Path) -> None:
    case = Case("--node-address=-v6", nothing, ALL_READY)
    outcomes = run(only_ipv6, tmp_path, case)
    assert {rank: outcome["error"] for rank, outcome in outcomes.items()} == ALL_READY
    check = shlex.join([sys.executable, "-m", "slurm_resolver", "check"])
    done = only_ipv6.run(f"srun {STEP} {check} --json --node-address=-v6", check=False)
    checks = {one["id"]: one for one in json.loads(done.stdout)["checks"]}
    for name in ("presence", "layout", "names", "ports", "reach", "speed"):
        assert checks[name]["status"] == "ok", checks[name]


def test_each_node_needs_one_connection(real_slurm: SlurmCluster, tmp_path: Path) -> None:
    """Forty tasks meet where a process may have 24 files open."""
    step = "-w n8,n9,n10,n11,n12 -N5 --ntasks-per-node=8 -m plane=8"
    task = f"ulimit -n 24; exec {TASK} --timeout 90"
    real_slurm.run(
        f"srun {step} bash -c {shlex.quote(task)}",
        env={"TASK_OUTPUT": str(tmp_path)},
        timeout=120,
    )
    outcomes = [json.loads(path.read_text()) for path in tmp_path.iterdir()]
    assert [outcome["error"] for outcome in outcomes] == [None] * 40
