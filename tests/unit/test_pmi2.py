"""PMI-2, over a socket to a stand-in for slurmstepd: what is shared, and every way of failing."""

from __future__ import annotations

import functools
import os
import random
import socket
import sys
from concurrent.futures import ThreadPoolExecutor
from importlib.machinery import ModuleSpec
from pathlib import Path
from typing import Any, Callable, Dict, Iterator, List, Optional, Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pmi2_stepd import Stepd, frame

from slurm_resolver.cluster import layout_exchange
from slurm_resolver.cluster.layout import Layout, layout_from_environment
from slurm_resolver.cluster.options import ClusterOptions
from slurm_resolver.cluster.pmi2_layout import (
    _from_runs,
    _in_runs,
    _own_place,
    read_places,
    why_no_store,
)
from slurm_resolver.errors import LayoutError, RendezvousError, UnreadableValueError
from slurm_resolver.rendezvous import barrier, first_half, pmi2, secret
from slurm_resolver.rendezvous.first_half import FirstHalf
from slurm_resolver.rendezvous.pmi2 import Pmi2Store, Pmi2Task, open_store
from slurm_resolver.rendezvous.pmi2_wire import find_problem
from slurm_resolver.rendezvous.point import Rendezvous
from slurm_resolver.slurm import mpi_use
from slurm_resolver.slurm.step import SlurmStep

LONG = 60.0  # seconds that a test never waits
SHORT = 0.05  # and that it waits in vain


@pytest.fixture(autouse=True)
def _a_new_process(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pmi2, "_store", None)
    monkeypatch.setattr(pmi2, "_problem", None)
    monkeypatch.setattr("atexit.register", lambda _: None)


@pytest.fixture
def start() -> Iterator[Callable[..., Stepd]]:
    started: List[Stepd] = []

    def start(*args: Any, **kwargs: Any) -> Stepd:
        started.append(Stepd(*args, **kwargs))
        return started[-1]

    yield start
    for one in started:
        one.close()


def store_of(stepd: Stepd, rank: int = 0, ranks: Sequence[int] = ()) -> Pmi2Store:
    return Pmi2Store(Pmi2Task(stepd.fd(rank), rank, stepd.size, ranks), LONG)


def at_once(calls: Sequence[Callable[[], Any]]) -> List[Any]:
    with ThreadPoolExecutor(len(calls)) as pool:
        return [future.result() for future in [pool.submit(call) for call in calls]]


def share_in_all(
    stores: Sequence[Pmi2Store], values: Sequence[Dict[str, str]], wanted: Sequence[str]
) -> List[Dict[str, str]]:
    def call(store: Pmi2Store, given: Dict[str, str]) -> Callable[[], Dict[str, str]]:
        return lambda: store.share(given, wanted, LONG)

    return at_once([call(store, given) for store, given in zip(stores, values)])


@pytest.mark.parametrize("piece", [1, 7, 1 << 20])
def test_all_tasks_get_what_each_has_given(start: Callable[..., Stepd], piece: int) -> None:
    stepd = start([2, 1], piece=piece)
    stores = [store_of(stepd, rank) for rank in range(3)]
    told = share_in_all(stores, [{"a": "1"}, {"b/x": "n 9"}, {}], ["b/x", "a"])
    assert told == [{"b/x": "n 9", "a": "1"}] * 3
    assert share_in_all(stores, [{}, {"a": "2"}, {}], ["a"]) == [{"a": "2"}] * 3
    for store in stores:
        assert store.problem is None
        store.finalize()
    assert stepd.requests.count("cmd=kvs-fence;") == 6


@settings(max_examples=30)
@given(st.lists(st.text(max_size=2000), min_size=1, max_size=3))
def test_any_text_arrives_as_it_was_given(texts: List[str]) -> None:
    stepd = Stepd()
    try:
        store = store_of(stepd)
        values = {f"k{number}": text for number, text in enumerate(texts)}
        try:
            told = store.share(values, list(values), LONG)
        except UnicodeEncodeError:
            assert any("\ud800" <= char <= "\udfff" for text in texts for char in text)
        else:
            assert told == values
        store.close()
    finally:
        stepd.close()


HOSTILE = ["", ";", "a=b;cmd=finalize;", "\0\n\r", "%3B", "ü€", "2:x", "x" * 5000, ";" * 700]


def test_nothing_goes_over_the_wire_that_slurmstepd_cannot_take(
    start: Callable[..., Stepd],
) -> None:
    stepd = start()
    store = store_of(stepd)
    values = {f"key-{number}": text for number, text in enumerate(HOSTILE)}
    assert store.share(values, list(values), LONG) == values
    for request in stepd.requests:
        pairs = [part.split("=", 1) for part in request[:-1].split(";")]
        names = [name for name, _ in pairs]
        assert names == ["cmd", "key", "value"] or "kvs-put" not in request
        for name, value in pairs:
            assert len(value) < (64 if name == "key" else 1024)
            assert value.isascii()
            assert value.isprintable()
    store.close()


@pytest.mark.parametrize("key", ["", "a;b", "a=b", "ü", "a b", "x" * 33])
def test_a_key_that_the_wire_cannot_carry_is_refused(start: Callable[..., Stepd], key: str) -> None:
    store = store_of(start())
    for values, wanted in (({key: ""}, []), ({}, [key])):  # type: Dict[str, str], List[str]
        with pytest.raises(ValueError, match=r"expected 1 to 32 letters"):
            store.share(values, wanted, LONG)
    with pytest.raises(ValueError, match="1,200,000 bytes; expected at most 960,000"):
        store.share({"k": ";" * 400_000}, [], LONG)
    assert store.problem is None
    store.close()


# What slurmstepd does instead of answering a command, and what the error says.
SILENT = {
    "init": "slurmstepd did not answer the greeting in time",
    "fullinit": "slurmstepd did not answer fullinit in time",
}
FALSE = {
    "another rank": ("fullinit", frame("cmd=fullinit-response;rc=0;rank=1;size=1;"), "rank 1 of 1"),
    "no rank": ("fullinit", frame("cmd=fullinit-response;rc=0;"), "for rank None of None"),
    "an error": ("kvs-put", frame("cmd=kvs-put-response;rc=14;"), "answers kvs-put with"),
    "another answer": ("kvs-fence", frame("cmd=kvs-put-response;rc=0;"), "answers kvs-fence with"),
    "the end": ("kvs-fence", frame("cmd=finalize-response;rc=0;"), "cmd=finalize-response"),
    "no length": ("kvs-get", b"cmd=kv", "and no length"),
    "a huge length": ("kvs-get", b"999999", "and no length"),
    "a length below 0": ("kvs-get", b"-1    ", "and no length"),
    "no fields": ("kvs-get", frame(";;=;x"), "answers kvs-get with"),
    "nothing": ("kvs-get", b"0     ", "answers kvs-get with ''"),
    "no text": ("kvs-get", b"2     \xff\xfe", "answers kvs-get with"),
    "no number of pieces": (
        "kvs-get",
        frame("cmd=kvs-get-response;rc=0;found=TRUE;value=0:x;"),
        "PMI-2 has",
    ),
}


@pytest.mark.parametrize("command", SILENT)
def test_a_slurmstepd_that_is_silent_does_not_hang_the_program(
    start: Callable[..., Stepd], command: str
) -> None:
    stepd = start(answer=lambda asked, _: b"" if asked == command else None)
    with pytest.raises(RendezvousError, match=SILENT[command]) as error:
        open_store(Pmi2Task(stepd.fd(), 0, 1), SHORT)
    assert "SLURM_RESOLVER_PMI2=off" in str(error.value)
    assert open_store(Pmi2Task(stepd.fd(), 0, 1), LONG) is None


@pytest.mark.parametrize(("command", "answer", "message"), FALSE.values(), ids=FALSE)
def test_an_answer_that_makes_no_sense_is_an_error_and_the_store_is_gone(
    start: Callable[..., Stepd], command: str, answer: bytes, message: str
) -> None:
    stepd = start(answer=lambda asked, _: answer if asked == command else None)
    task = Pmi2Task(stepd.fd(), 0, 1)
    with pytest.raises(RendezvousError, match=message):
        Pmi2Store(task, LONG).share({"k": "v"}, ["k"], LONG)
    assert find_problem(stepd.fd()) is not None


def test_a_task_that_does_not_come_is_named_on_its_own_node(start: Callable[..., Stepd]) -> None:
    stepd = start([3, 1])
    missing = {
        1: "of this node, 2 of 3 are missing: rank 0, 2.",  # each looks only after its own time
        0: "of this node, 1 of 3 are missing: rank 2.",
        3: "those of this node have, and it does not tell who is missing on the others.",
    }
    for rank, who in missing.items():
        store = store_of(stepd, rank, [0, 1, 2] if rank < 3 else [3])
        with pytest.raises(RendezvousError) as error:
            store.share({}, [], 0.0)
        text = str(error.value)
        assert text.startswith("not all 4 tasks of the step have come to PMI-2's fence in time")
        assert who in text
        assert text.endswith("SLURM_RESOLVER_PMI2=off to do without PMI-2.")
        # The fence cannot be taken back: whatever is asked now might get its answer.
        with pytest.raises(RendezvousError, match="PMI-2 is gone: not all 4 tasks"):
            store.share({}, [], LONG)


def test_a_key_that_nobody_gives_is_an_error(start: Callable[..., Stepd]) -> None:
    store = store_of(start())
    with pytest.raises(RendezvousError, match="none has given 'secret': they do not run the same"):
        store.share({"other": "1"}, ["secret"], LONG)
    assert store.share({"secret": "2"}, ["secret"], LONG) == {"secret": "2"}
    store.close()


# What answers a greeting where PMI-2 is not to be had: then the tasks meet over TCP.
ELSEWHERE = {
    "a task that was greeted before": frame("cmd=finalize-response;rc=0;"),
    "a step that speaks PMI-1": b"cmd=response_to_init rc=-1 pmi_version=1 pmi_subversion=1\n",
    "rubbish": b"x" * 200,
    "no text": b"\xff\n",
}


@pytest.mark.parametrize("answer", ELSEWHERE.values(), ids=ELSEWHERE)
def test_where_slurmstepd_does_not_welcome_the_task_there_is_no_store(answer: bytes) -> None:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        with ThreadPoolExecutor(1) as pool:
            task = Pmi2Task(theirs.fileno(), 0, 1)
            found = pool.submit(open_store, task, LONG)
            assert ours.recv(100) == b"cmd=init pmi_version=2 pmi_subversion=0\n"
            ours.sendall(answer)
            ours.shutdown(socket.SHUT_WR)
            assert found.result() is None
        assert open_store(task) is None
        assert find_problem(theirs.fileno()) is not None


def test_a_process_has_one_store_and_the_next_program_of_the_task_none(
    start: Callable[..., Stepd], monkeypatch: pytest.MonkeyPatch
) -> None:
    stepd = start()
    task = Pmi2Task(stepd.fd(), 0, 1)
    os.set_inheritable(task.fd, True)
    store = open_store(task)
    assert store is not None
    assert open_store(task) is store
    assert not os.get_inheritable(task.fd)  # no child may greet slurmstepd once more
    monkeypatch.setattr(pmi2, "_store", None)  # another program, also one that is killed
    requests = list(stepd.requests)
    assert open_store(task) is None
    assert stepd.requests == requests
    store.finalize()
    assert stepd.requests[-1] == "cmd=finalize;"
    assert store.problem == "this process has left it"


def test_a_child_by_fork_has_no_store(start: Callable[..., Stepd]) -> None:
    task = Pmi2Task(start().fd(), 0, 1)
    store = open_store(task)
    assert store is not None
    pmi2._leave_in_child()
    assert open_store(task) is None
    assert store.problem is not None


def test_what_is_not_slurmstepds_socket_is_left_alone(tmp_path: Path) -> None:
    ours, theirs = socket.socketpair()
    packets = socket.socketpair(type=socket.SOCK_DGRAM)
    named = socket.socket(socket.AF_UNIX)
    named.bind(str(tmp_path / "socket"))
    tcp = socket.socket()
    with ours, theirs, packets[0], packets[1], named, tcp, open(tmp_path / "file", "w") as file:
        assert find_problem(theirs.fileno()) is None
        for other in (packets[0], named, tcp, file):
            assert find_problem(other.fileno()) is not None
        ours.sendall(b"x")
        assert find_problem(theirs.fileno()) == "an answer is left in it"
        closed = theirs.fileno()
    assert find_problem(closed) == "Bad file descriptor"
    assert (tmp_path / "file").read_bytes() == b""


TASK: Dict[str, Any] = {
    "rank": 1,
    "local_rank": 1,
    "num_tasks": 4,
    "node_name": "n8",
    "node_ranks": (0, 1),
    "task_pid": "1",
    "pmi_fd": "17",
    "pmi_rank": "1",
    "pmi_size": "4",
}
NOT_THERE: Dict[str, Any] = {
    "everything is there": ({}, None),
    "on, with mpi4py": ({"pmi2": "on", "task_pid": "none"}, None),
    "off": ({"pmi2": "off"}, "SLURM_RESOLVER_PMI2=off"),
    "no PMI": ({"pmi_fd": None, "pmi_rank": None, "pmi_size": None}, "--mpi=pmi2"),
    "another step's rank": ({"pmi_rank": "0"}, "PMI_RANK is 0"),
    "another step's size": ({"pmi_size": "1"}, "PMI_SIZE is 1"),
    "no socket": ({"pmi_fd": None}, "PMI_FD is not set"),
    "no number": ({"pmi_fd": "x"}, "PMI_FD is x"),
    "another launcher": ({"launcher": "orted"}, "srun did not start"),
    "copied variables": ({"task_pid": None}, "srun did not start"),
    "a component": ({"is_component": True}, "does not reach over the components"),
    "no ranks": ({"node_ranks": None}, "SLURM_GTIDS"),
}


@pytest.mark.parametrize(("values", "reason"), NOT_THERE.values(), ids=NOT_THERE)
def test_the_store_is_used_only_where_it_is_this_tasks(
    values: Dict[str, Any], reason: Optional[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    mpi = {"1": None, "none": "the package mpi4py"}
    monkeypatch.setattr("slurm_resolver.cluster.pmi2_layout.find_mpi", mpi.get)
    found = why_no_store(SlurmStep(**{**TASK, **values}), ClusterOptions())
    assert (found is None) == (reason is None)
    assert (reason or "") in (found or "")


def test_the_store_is_left_to_a_program_that_may_use_mpi(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("slurm_resolver.cluster.pmi2_layout.find_mpi", lambda _: "mpi4py is here")
    assert why_no_store(SlurmStep(**TASK), ClusterOptions()) == "mpi4py is here"
    monkeypatch.setattr("slurm_resolver.cluster.pmi2_layout.find_mpi", lambda _: None)
    starts = ClusterOptions(starts_program=True)
    assert "may use MPI" in str(why_no_store(SlurmStep(**TASK), starts))
    assert why_no_store(SlurmStep(**{**TASK, "pmi2": "on"}), starts) is None
    assert why_no_store(SlurmStep(**TASK), ClusterOptions(layout="rendezvous")) is not None


@pytest.mark.parametrize("text", ["yes", "1", "true"])
def test_a_switch_that_is_none_is_an_error(text: str) -> None:
    message = f"SLURM_RESOLVER_PMI2='{text}': expected auto, on or off. Set it to off where"
    with pytest.raises(UnreadableValueError, match=message):
        SlurmStep.read({"SLURM_RESOLVER_PMI2": text})
    assert SlurmStep.read({"SLURM_RESOLVER_PMI2": "Off"}).pmi2 == "off"


def test_mpi_is_found_where_it_is_installed_or_loaded(monkeypatch: pytest.MonkeyPatch) -> None:
    own = str(os.getpid())
    maps = {own: "7f00 r-xp /usr/lib/libc.so.6\n", str(os.getppid()): "7f00 r-xp /bin/bash\n"}
    installed: List[str] = []
    spec = ModuleSpec("found", None)
    monkeypatch.setattr(mpi_use, "read_proc", lambda path: maps[path.split("/")[2]])
    monkeypatch.setattr(
        "importlib.util.find_spec", lambda name: spec if name in installed else None
    )
    parent = str(os.getppid())
    assert mpi_use.find_mpi(own) is None
    assert mpi_use.find_mpi(parent) is None
    assert "cannot be seen" in str(mpi_use.find_mpi(None))
    for library in ("libmpi.so.40", "libmpich.so.12", "libmpi_cray.so", "libpmi2.so.0"):
        maps[parent] = f"7f00 r-xp /opt/x/{library}\n"
        assert f"has loaded {library.split('.so')[0]}.so" in str(mpi_use.find_mpi(parent))
        assert mpi_use.find_mpi(own) is None
    maps[parent] = ""
    assert "cannot be looked at" in str(mpi_use.find_mpi(parent))
    for name in ("mpi4py", "horovod", "petsc4py"):
        installed[:] = [name]
        assert f"the package {name}" in str(mpi_use.find_mpi(own))
    installed.clear()
    monkeypatch.setitem(sys.modules, "mpi4py", None)
    assert "mpi4py" in str(mpi_use.find_mpi(own))


def steps_of(hosts: Sequence[str], nodes: Sequence[str]) -> List[SlurmStep]:
    """The variables of the tasks of a step in arbitrary distribution: rank r is on hosts[r]."""
    counts = tuple(hosts.count(node) for node in nodes)
    ranks_on = {node: [r for r, host in enumerate(hosts) if host == node] for node in nodes}
    return [
        SlurmStep(
            rank=rank,
            local_rank=ranks_on[host].index(rank),
            node_name=host,
            node_id=nodes.index(host),
            node_ranks=tuple(ranks_on[host]),
            nodes=tuple(nodes),
            tasks_per_node=counts,
            num_tasks=len(hosts),
            job_id="1",
            step_id="0",
            distribution="arbitrary",
        )
        for rank, host in enumerate(hosts)
    ]


class Exchange:
    """The tasks of a step, as threads of this process, that find their layout by PMI-2."""

    def __init__(self, stepd: Stepd, monkeypatch: pytest.MonkeyPatch) -> None:
        self.stepd = stepd
        self._halves: Dict[int, FirstHalf] = {}
        monkeypatch.setattr(first_half, "find_half", self._find_half)
        monkeypatch.setattr(first_half, "open_store", lambda task: Pmi2Store(task, LONG))
        monkeypatch.setattr(barrier, "_SHARE_SECONDS", LONG)
        monkeypatch.setattr(secret, "_by_pmi2", {})

    def _find_half(self, point: Rendezvous) -> FirstHalf:
        assert point.pmi2 is not None
        half = self._halves[point.rank] = FirstHalf()
        half.begin(point.pmi2, point.is_host)
        return half

    def find(self, number: int, step: SlurmStep) -> Layout:
        """What the task of this number at the stand-in finds."""
        ranks = step.require(SlurmStep.node_ranks)
        task = Pmi2Task(
            self.stepd.fd(number), number, self.stepd.size, ranks, given=_own_place(step)
        )
        return layout_exchange.exchange_layout(step, timeout=8 * LONG, find_task=lambda: task)

    def error(self, number: int, step: SlurmStep) -> str:
        """What is wrong with what the tasks tell."""
        with pytest.raises(LayoutError) as error:
            self.find(number, step)
        return str(error.value)

    def close(self) -> None:
        for half in self._halves.values():
            if half._store is not None:
                half._store.close()


@pytest.mark.parametrize("seed", range(12))
def test_the_layout_that_the_nodes_first_tasks_tell_is_the_true_one(
    start: Callable[..., Stepd], seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    chance = random.Random(seed)
    nodes = [f"n{number}" for number in range(1, chance.randint(2, 5))]
    hosts = nodes + chance.choices(nodes, k=chance.randint(0, 12))
    kind = chance.choice(["any", "block", "cyclic"])
    if kind == "any":
        chance.shuffle(hosts)
    elif kind == "block":
        hosts.sort(key=nodes.index)
    steps = steps_of(hosts, nodes)
    stepd = start([1] * len(hosts))
    exchange = Exchange(stepd, monkeypatch)
    layouts = at_once([functools.partial(exchange.find, *one) for one in enumerate(steps)])
    for layout in layouts:
        assert [layout.nodes[node] for node in layout.node_of] == hosts
        assert list(layout.local_rank_of) == [step.local_rank for step in steps]
        assert layout.source == "pmi2"
    assert sum("kvs-put" in request for request in stepd.requests) == len(nodes) + 1  # the secret
    exchange.close()


# What the first tasks of two nodes of one task each tell, and what is wrong with it.
IMPOSSIBLE = {
    "a rank that is none": (["0 0+1*0", "1 7+1*0"], "rank 7 of 2 runs on n2"),
    "a rank on two nodes": (["0 0+1*0", "1 0+1*0"], "rank 0 of 2 runs on n2.*, and on n1"),
    "a rank on two nodes, too many": (
        ["0 0+1*1", "1 1+1*0"],
        "rank 1 of 2 runs on n2.*, and on n1",
    ),
    "a rank twice on a node": (["0 0+0*1", "1 1+1*0"], "rank 0 of 2 runs on n1.*, and on n1"),
    "a rank too few": (["0 0+1*0", "1 0+1*-1"], "tell of 1 tasks by PMI-2; expected 2"),
}


@pytest.mark.parametrize(("told", "message"), IMPOSSIBLE.values(), ids=IMPOSSIBLE)
def test_places_that_cannot_be_are_an_error(told: List[str], message: str) -> None:
    nodes = ["n1", "n2"]
    half = FirstHalf()
    half.read = lambda wanted: dict(zip(wanted, told))  # type: ignore[method-assign]
    for step in steps_of(nodes, nodes):
        with pytest.raises(RendezvousError, match=message):
            read_places(half, step, nodes)


# What is wrong with the variables of the second of two tasks, and what the first and it say.
CONTRADICTING: Dict[str, Any] = {
    "another task's node": ({"node_ranks": (0, 1)}, "given 'place/1'", "given 'place/1'"),
    "another rank on the node": ({"node_ranks": (1, 7)}, "rank 7 of 2", "rank 7 of 2"),
    "a node of another step": (
        {"node_name": "n7"},
        "none has given 'place/1'",
        "rank 1 runs on 'n7', which SLURM_STEP_NODELIST does not name",
    ),
}


@pytest.mark.parametrize(
    ("values", "first_says", "second_says"), CONTRADICTING.values(), ids=CONTRADICTING
)
def test_tasks_that_tell_what_cannot_be_are_an_error(
    start: Callable[..., Stepd],
    monkeypatch: pytest.MonkeyPatch,
    values: Dict[str, Any],
    first_says: str,
    second_says: str,
) -> None:
    first, second = steps_of(["n1", "n2"], ["n1", "n2"])
    exchange = Exchange(start([1, 1]), monkeypatch)
    wrong = [first, second.replace(**values)]
    told = at_once([functools.partial(exchange.error, *one) for one in enumerate(wrong)])
    assert first_says in told[0]
    assert second_says in told[1]
    exchange.close()


def test_the_ranks_of_every_distribution_fit_into_one_piece() -> None:
    nodes = tuple(f"n{number}" for number in range(1000))
    step = SlurmStep(nodes=nodes, tasks_per_node=(128,) * 1000, job_id="1", step_id="0")
    for distribution, plane in (("block", None), ("cyclic", None), ("plane", 4)):
        layout = layout_from_environment(step.replace(distribution=distribution, plane_size=plane))
        for node in (0, 999):
            ranks = layout.ranks_on(node)
            assert tuple(_from_runs(_in_runs(ranks))) == ranks
            assert len(_in_runs(ranks)) < 900


@given(st.sets(st.integers(0, 2**24 - 1), min_size=1, max_size=200))
def test_any_ranks_are_read_as_they_were_written(ranks: Any) -> None:
    assert list(_from_runs(_in_runs(sorted(ranks)))) == sorted(ranks)
