"""The preflight: what each check sees, on the real Slurm and on one machine."""

from __future__ import annotations

import contextlib
import json
import os
import re
import shlex
import socket
import sys
from pathlib import Path
from typing import Any, Dict, List, Set

import pytest
from conftest import packets_dropped, recordings
from slurm_cluster import SlurmCluster

import slurm_resolver as sr
from slurm_resolver.cli import main
from slurm_resolver.preflight import step_checks as preflight
from slurm_resolver.preflight.ready import task_names
from slurm_resolver.preflight.step_checks import check_here
from slurm_resolver.rendezvous.probe import Listener, ask, holder_of, peers_to_ask, send, unresolved
from slurm_resolver.slurm.step import SlurmStep

CHECK = shlex.join([sys.executable, "-m", "slurm_resolver", "check"])
IDS = [
    *("presence", "layout", "agreement", "names", "ports", "reach", "speed", "gpus", "tensorflow"),
    *("keras", "proxies", "clocks", "requeue", "preemption", "signal", "log"),
]


@pytest.fixture
def port() -> int:
    with socket.create_server(("", 0)) as probe:
        return int(probe.getsockname()[1])


class TestProbe:
    def test_who_listens_is_told_to_who_asks(self, port: int) -> None:
        listener = Listener(7, port)
        try:
            assert listener.problem is None
            peer = ask(f"127.0.0.1:{port}", 7)
            assert (peer.problem, peer.seconds > 0, abs(peer.clock) < 1) == (None, True, True)
            assert ask(f"127.0.0.1:{port}", 6).problem == "rank 7 answers there"
            rate = send(f"127.0.0.1:{port}", 4 * 2**20)
            assert rate is not None
            assert rate > 0
        finally:
            listener.close()
        assert "refused" in (ask(f"127.0.0.1:{port}", 7).problem or "")
        assert send(f"127.0.0.1:{port}", 1) is None

    def test_a_taken_port_and_who_holds_it(self, port: int) -> None:
        name = Path("/proc/self/comm").read_text().strip()
        with socket.create_server(("", port)):
            assert holder_of(port) == f"process {os.getpid()} ({name})"
            problem = Listener(0, port).problem
        assert problem == f"port {port}: Address already in use, by process {os.getpid()} ({name})"
        assert holder_of(port) is None

    @pytest.mark.parametrize("sent", [b"", b"x", b"t", b"t" + b"\xff" * 8, b"GET / HTTP/1.1"])
    def test_strangers(self, port: int, sent: bytes) -> None:
        listener = Listener(0, port)
        try:
            with socket.create_connection(("127.0.0.1", port), timeout=20) as stranger:
                stranger.sendall(sent)
                with contextlib.suppress(OSError):  # it may have been shown the door already
                    stranger.shutdown(socket.SHUT_WR)
                with contextlib.suppress(ConnectionResetError):  # hung up on, as it should be
                    assert len(stranger.recv(100)) in (0, 16)
            assert ask(f"127.0.0.1:{port}", 0).problem is None
        finally:
            listener.close()

    def test_names(self) -> None:
        assert unresolved(["localhost", "127.0.0.1"]) == {}
        assert list(unresolved(["localhost", "no such name"])) == ["no such name"]

    @pytest.mark.parametrize("tasks", [1, 2, 64, 65, 1000])
    def test_a_sample_covers_the_step(self, tasks: int) -> None:
        asked: Dict[int, int] = dict.fromkeys(range(tasks), 0)
        for rank in range(tasks):
            peers = peers_to_ask(rank, tasks)
            assert rank not in peers
            assert len(set(peers)) == len(peers) <= 63
            for peer in peers:
                asked[peer] += 1
        assert len(set(asked.values())) == 1  # every task is asked by as many
        reached: Set[int] = {0}
        frontier = {0}
        while frontier:
            frontier = {p for rank in frontier for p in peers_to_ask(rank, tasks)} - reached
            reached |= frontier
        assert reached == set(range(tasks))


def results(output: str) -> Dict[str, Any]:
    (line,) = output.splitlines()  # printed once
    printed = json.loads(line)
    assert printed["ok"] == all(check["status"] != "failed" for check in printed["checks"])
    return {check["id"]: check for check in printed["checks"]}


def run(slurm: SlurmCluster, options: str, arguments: str = "", status: int = 0) -> Dict[str, Any]:
    done = slurm.run(f"srun {options} {CHECK} --json {arguments}", check=False)
    assert done.returncode == status, done.stdout + done.stderr
    return results(done.stdout)


@pytest.mark.slurm
class TestOnSlurm:
    def test_a_healthy_step(self, real_slurm: SlurmCluster) -> None:
        options = "-w n8,n9,n10 -N3 --ntasks-per-node=2 -m cyclic"
        checks = run(real_slurm, options, "--jobs chief=1,ps=1,worker=-1")
        assert list(checks) == IDS
        statuses = {id: check["status"] for id, check in checks.items()}
        tensorflow = {"tensorflow", "keras"}  # as they are installed here, or not
        batch = {"requeue", "signal", "log"}  # there is no batch file
        others = {id for id, status in statuses.items() if status != "ok"}
        assert others - tensorflow == {"gpus", *batch}
        assert {statuses[id] for id in batch} == {"skipped"}
        assert checks["layout"]["detail"] == "cyclic, from environment"
        assert checks["names"]["detail"] == "3 host names resolve on every node"
        assert checks["reach"]["detail"] == "30 connections between the tasks"
        assert re.match(
            r"round trip \d+ µs; between neighbours \d+ MB/s", checks["speed"]["detail"]
        )

    def test_the_grid(self, real_slurm: SlurmCluster) -> None:
        lines = real_slurm.run(f"srun -w n8,n9 -N2 -n2 {CHECK}").stdout.splitlines()
        assert [line.split()[0] for line in lines] == IDS
        assert lines[0] == "presence    ok       all 2 tasks are there"

    def test_gpus_that_tasks_share(self, real_slurm: SlurmCluster) -> None:
        shared = run(real_slurm, "-w n8 -N1 -n2 --gpus=1")["gpus"]
        assert shared["status"] == "warning"
        assert shared["detail"] == "GPU 0 of n8 is taken by the ranks 0, 1"
        alone = run(real_slurm, "-w n8,n9 -N2 --ntasks-per-node=2 --gpus-per-task=1")["gpus"]
        assert (alone["status"], alone["detail"]) == ("ok", "4, each with one task")

    def test_a_taken_port(self, real_slurm: SlurmCluster) -> None:
        hold = "import socket, time; s = socket.create_server(('', 24501)); time.sleep(60)"
        listening = "until grep -q ':5FB5 .* 0A ' /proc/net/tcp; do sleep 0.02; done"
        script = (
            f'if [ "$SLURM_PROCID" = 3 ]; then {sys.executable} -c "{hold}" & {listening}; fi; '
            f"{CHECK} --json --port-base 24500; status=$?; kill %1 2>/dev/null; exit $status"
        )
        step = f"srun -w n9,n10 -N2 --ntasks-per-node=2 bash -c {shlex.quote(script)}"
        done = real_slurm.run(step, check=False)
        assert done.returncode == 1
        checks = results(done.stdout)
        assert re.fullmatch(
            r"rank 3 \(worker 3 on n10\): port 24501: Address already in use, by process \d+ "
            r"\(python\S*\)",
            checks["ports"]["detail"],
        )
        assert checks["reach"]["status"] == "failed"

    def test_tasks_that_disagree(self, real_slurm: SlurmCluster) -> None:
        script = f'{CHECK} --json --jobs "ps=$((SLURM_PROCID / 3)),worker=-1"'
        step = f"srun -w n9,n10 -N2 --ntasks-per-node=2 bash -c {shlex.quote(script)}"
        done = real_slurm.run(step, check=False)
        assert done.returncode == 1
        agreement = results(done.stdout)["agreement"]
        assert agreement["status"] == "failed"
        assert "disagree on the jobs (argument jobs): rank 3 (" in agreement["detail"]
        assert '{"ps": 1, "worker": 3}' in agreement["detail"]

    def test_a_task_that_is_missing(self, real_slurm: SlurmCluster) -> None:
        script = f'[ "$SLURM_PROCID" = 1 ] || {CHECK} --json --timeout 2'
        step = f"srun -w n9,n10 -N2 --ntasks-per-node=2 bash -c {shlex.quote(script)}"
        done = real_slurm.run(step, check=False)
        assert done.returncode == 1
        presence = results(done.stdout)["presence"]
        assert presence["status"] == "failed"
        assert "1 of 4 tasks are missing" in presence["detail"]
        assert "rank 1 (worker 1 on n9)" in presence["detail"]

    def test_packets_that_are_dropped_between_two_nodes(self, real_slurm: SlurmCluster) -> None:
        """n8, where the tasks meet, is reached by all; n10 does not reach n9."""
        with packets_dropped(real_slurm, "n10", "n9"):
            reach = run(real_slurm, "-w n8,n9,n10 -N3 -n3", status=1)["reach"]
        assert (
            "rank 2 (worker 2 on n10) cannot reach rank 1 (worker 1 on n9) at n9:"
            in reach["detail"]
        )
        assert "timed out" in reach["detail"]

    def test_a_step_of_one_task(self, real_slurm: SlurmCluster) -> None:
        checks = run(real_slurm, "-n1")
        assert checks["presence"]["detail"] == "all 1 tasks are there"
        assert checks["speed"]["status"] == "skipped"


def test_the_layout_is_held_against_slurms_word_for_the_task() -> None:
    task = next(r for r in recordings() if r.name.endswith("even_2x2")).tasks[2]
    cluster, step = sr.resolve(environ=task), SlurmStep.read(task)
    names = task_names(cluster)
    facts = preflight._local_facts(cluster, step)
    assert preflight._layout({2: facts}, cluster, names).status == "ok"
    elsewhere = preflight._local_facts(cluster, step._replace(nodename="n0", localid=1))
    assert preflight._layout({2: elsewhere}, cluster, names) == (
        "layout",
        "failed",
        "rank 2 (worker 2 on n1) really runs on n0, local id 1",
    )


def test_one_machine(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HTTPS_PROXY", "http://proxy:3128")
    for name in ("no_proxy", "NO_PROXY", "no_grpc_proxy"):
        monkeypatch.delenv(name, raising=False)
    checks = {result.id: result for result in check_here()}
    ids = ["names", "tensorflow", "keras", "proxies", "gpus", "requeue", "preemption", "step"]
    assert list(checks) == ids
    assert checks["proxies"].status == "warning"
    assert "https_proxy set, which gRPC would use" in checks["proxies"].detail
    monkeypatch.setenv("NO_PROXY", "n[1-4]")
    assert {result.id: result for result in check_here()}["proxies"].status == "ok"
    failed = any(result.status == "failed" for result in checks.values())
    assert main(["check", "--json"]) == failed
    assert [check["id"] for check in json.loads(capsys.readouterr().out)["checks"]] == list(checks)


def test_software_that_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    from importlib import metadata

    versions: Dict[str, str] = {}

    def version(name: str) -> str:
        if name not in versions:
            raise metadata.PackageNotFoundError
        return versions[name]

    monkeypatch.setattr(metadata, "version", version)
    monkeypatch.delitem(sys.modules, "tensorflow", raising=False)
    found: List[Any] = [r for r in check_here() if r.id in ("tensorflow", "keras")]
    assert [result.status for result in found] == ["failed", "ok"]
    versions.update({"tensorflow-cpu": "2.21.0", "keras": "3.15.1"})
    found = [r for r in check_here() if r.id in ("tensorflow", "keras")]
    assert [result.status for result in found] == ["ok", "warning"]
    monkeypatch.setenv("TF_USE_LEGACY_KERAS", "1")
    assert next(r for r in check_here() if r.id == "keras").status == "ok"


def test_errors_of_the_environment_are_exit_status_2(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SLURM_STEP_NUM_TASKS", "none")
    assert main(["check"]) == 2
    assert issubclass(sr.RendezvousError, sr.SlurmResolverError)
