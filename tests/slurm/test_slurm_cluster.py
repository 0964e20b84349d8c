"""Tests of the test cluster itself: what the other tests take for granted."""

from __future__ import annotations

import os
import shlex
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import slurm_cluster
from folders import HELPERS
from slurm_cluster import Node, SlurmCluster, SlurmUnavailable, slurm_or_skip, started
from slurm_installation import Installation

pytestmark = pytest.mark.slurm

NODES = [Node("n8", gpus=4), Node("n9", gpus=4), Node("n10"), Node("n11"), Node("n12")]

LISTEN = """
import socket, sys
server = socket.create_server(("", int(sys.argv[1])))
print("listening", flush=True)
connection, peer = server.accept()
print("from", peer[0], connection.recv(100).decode(), flush=True)
"""
CONNECT = """
import socket, sys
socket.create_connection((sys.argv[1], int(sys.argv[2])), timeout=10).sendall(sys.argv[3].encode())
"""


def python(script: str, *arguments: object) -> str:
    return shlex.join([sys.executable, "-c", script, *map(str, arguments)])


def traces() -> tuple[list[str], str]:
    """Return what a cluster could leave on the machine: interfaces and mounts."""
    return sorted(os.listdir("/sys/class/net")), Path("/proc/self/mounts").read_text()


def processes(directory: Path) -> list[str]:
    """Return the processes whose command names a cluster's directory."""
    found = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            command = path.read_bytes().decode(errors="replace")
        except OSError:
            continue
        if str(directory) in command:
            found.append(command.replace("\0", " "))
    return found


def await_true(condition: Callable[[], bool], timeout: float = 10.0) -> None:
    deadline = time.monotonic() + timeout
    while not condition():
        assert time.monotonic() < deadline, "it did not become true"
        time.sleep(0.02)


@pytest.fixture(scope="module")
def cluster(
    installation: Installation, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[SlurmCluster]:
    directory = tmp_path_factory.mktemp("slurm")
    with started(SlurmCluster(NODES, directory, installation=installation)) as running:
        yield running


def placed(cluster: SlurmCluster, command: str) -> list[str]:
    """Return the hostname of every rank, in order of rank."""
    lines = cluster.run(f"{command} hostname").stdout.splitlines()
    return [host for _, host in sorted((int(r), h) for r, h in (x.split(": ") for x in lines))]


@pytest.mark.parametrize(
    ("command", "hosts"),
    [
        ("srun -l -N5", "n8 n9 n10 n11 n12"),
        ("srun -l -w n8,n9 -n5 -m block", "n8 n8 n8 n8 n9"),
        ("srun -l -w n8,n9 -n4 --ntasks-per-node=2 -m cyclic", "n8 n9 n8 n9"),
        ("srun -l -w n8,n9 -n8 --ntasks-per-node=4 -m plane=2", "n8 n8 n9 n9 n8 n8 n9 n9"),
        ("srun -l -n3 -m arbitrary -w n10,n8,n10", "n10 n8 n10"),
        ("srun -l -n2 -w n9 : -n3 -w n8,n10", "n9 n9 n8 n8 n10"),
    ],
)
def test_slurm_places_tasks(cluster: SlurmCluster, command: str, hosts: str) -> None:
    assert placed(cluster, command) == hosts.split()


@pytest.mark.parametrize(
    ("option", "gpus"),
    [
        ("--gpus-per-node=4", ["0,1,2,3"] * 4),
        ("--gpus-per-task=2", ["0,1", "0,1", "2,3", "2,3"]),
        ("", [""] * 4),
    ],
)
def test_gpus_are_fake_but_assigned(cluster: SlurmCluster, option: str, gpus: list[str]) -> None:
    command = f"srun -w n8,n9 --ntasks-per-node=2 {option} bash -c 'echo $CUDA_VISIBLE_DEVICES'"
    assert sorted(cluster.run(command).stdout.splitlines()) == gpus


def test_an_allocation_runs_several_steps_at_once(cluster: SlurmCluster) -> None:
    steps = "srun -N1 -n1 -w n8 hostname & srun -N1 -n1 -w n9 hostname & wait"
    output = cluster.run(["salloc", "-w", "n8,n9", "bash", "-c", steps]).stdout
    assert sorted(output.split()) == ["n8", "n9"]


def test_a_batch_script_runs(cluster: SlurmCluster) -> None:
    output = cluster.directory / "batch.out"
    cluster.run(f"sbatch -w n8,n9 -o {output} --wrap 'srun hostname; echo done'")
    await_true(lambda: output.exists() and "done" in output.read_text())
    assert sorted(output.read_text().split()) == ["done", "n8", "n9"]


def test_output_comes_whole(cluster: SlurmCluster) -> None:
    output = cluster.run("srun -N5 -n20 bash -c 'seq -f \"line %.0f of $SLURM_PROCID\" 500'").stdout
    wanted = {f"line {line} of {rank}" for line in range(1, 501) for rank in range(20)}
    assert len(output.splitlines()) == 500 * 20
    assert set(output.splitlines()) == wanted


def test_tasks_reach_each_other_by_node_name(cluster: SlurmCluster) -> None:
    server = cluster.popen(f"srun -w n9 {python(LISTEN, 5000)}")
    assert server.stdout is not None
    assert server.stdout.readline() == "listening\n"
    cluster.run(f"srun -w n10 {python(CONNECT, 'n9', 5000, 'hello')}")
    assert server.communicate(timeout=10) == ("from 10.77.0.3 hello\n", "")


def test_every_node_has_its_own_ports_and_two_jobs_share_nodes(cluster: SlurmCluster) -> None:
    listeners = [cluster.popen(f"srun -w n9,n10 {python(LISTEN, port)}") for port in (5001, 5002)]
    for port, listener in zip((5001, 5002), listeners):
        assert listener.stdout is not None
        assert [listener.stdout.readline() for _ in range(2)] == ["listening\n"] * 2
        for node in ("n9", "n10"):
            cluster.run_on("n8", python(CONNECT, node, port, port))
        output, _ = listener.communicate(timeout=10)
        assert output == f"from 10.77.0.1 {port}\n" * 2


def test_the_environment_is_clean(
    cluster: SlurmCluster, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    for name in ("SLURM_JOB_ID", "CUDA_VISIBLE_DEVICES", "TF_CONFIG"):
        monkeypatch.setenv(name, "7")
    output = cluster.run("env; pwd; ls -d ~", env={"MINE": "1"}, cwd=tmp_path).stdout
    names = {line.split("=")[0] for line in output.splitlines() if "=" in line}
    assert names <= {"PATH", "HOME", "LANG", "TMPDIR", "SLURM_CONF", "MINE", "PWD", "SHLVL", "_"}
    assert {"PATH", "SLURM_CONF", "MINE"} <= names
    assert output.splitlines()[-2:] == [str(tmp_path), str(Path.home())]


def test_a_command_runs_on_a_node(cluster: SlurmCluster) -> None:
    assert cluster.run("hostname").stdout == "login\n"
    assert cluster.run_on("n10", ["hostname"]).stdout == "n10\n"
    assert "10.77.0.3/24" in cluster.run_on("n10", "ip -brief address").stdout
    assert cluster.run_on("n10", "getent hosts n12 localhost").stdout.split()[::2] == [
        "10.77.0.5",
        "127.0.0.1",
    ]
    with pytest.raises(ValueError, match="n13"):
        cluster.run_on("n13", "true")


def test_a_failure_shows_everything(cluster: SlurmCluster) -> None:
    with pytest.raises(AssertionError) as caught:
        cluster.run("echo out; echo err >&2; exit 3")
    assert str(caught.value).split("\n") == [
        "echo out; echo err >&2; exit 3",
        "ended with status 3",
        *("--- stdout", "out", ""),
        *("--- stderr", "err", ""),
    ]
    assert cluster.run(["false"], check=False).returncode == 1


@pytest.mark.parametrize(
    "command", ["srun -J {} sleep 300", "sbatch -J {} -o out -W --wrap 'sleep 300'"]
)
def test_a_time_out_ends_the_command_and_its_job(
    cluster: SlurmCluster, command: str, tmp_path: Path
) -> None:
    name = command.split()[0] + "-late"
    with pytest.raises(TimeoutError, match=r"(?s)longer than 0\.5 s.*so far"):
        cluster.run(f"echo so far; {command.format(name)}", cwd=tmp_path, timeout=0.5)
    await_true(lambda: cluster.run(f"squeue -h -n {name}").stdout == "")
    assert "sleep 300" not in cluster.run("ps -e -o args").stdout


def test_a_signal_reaches_a_command_in_the_background(cluster: SlurmCluster) -> None:
    command = cluster.popen("srun -N2 bash -c 'echo up; exec sleep 300'")
    assert command.stdout is not None
    assert command.stdout.readline() == "up\n"
    command.terminate()
    _, errors = command.communicate(timeout=10)
    assert command.returncode != 0
    assert "forcing job termination" in errors


def test_extra_lines_replace_ours(tmp_path: Path, cluster: SlurmCluster) -> None:
    ports = "srun bash -c 'echo $SLURM_STEP_RESV_PORTS'"
    assert cluster.run(ports).stdout.startswith("23")
    lines = ["mpiparams=", "KillWait=9", "PartitionName=q Nodes=b"]
    with SlurmCluster([Node("a"), Node("b")], tmp_path, extra_conf=lines) as other:
        assert other.run(ports).stdout == "\n"
        assert "KillWait                = 9 sec" in other.run("scontrol show config").stdout
        # Two clusters run at once, and neither sees the other's nodes.
        assert placed(other, "srun -l -p q") == ["b"]
        assert placed(cluster, "srun -l -w n8,n9") == ["n8", "n9"]


def test_stopping_leaves_nothing_and_starting_again_works(
    tmp_path: Path, cluster: SlurmCluster
) -> None:
    before = traces()
    again = SlurmCluster([Node("a")], tmp_path)
    for _ in range(3):
        with again:
            assert placed(again, "srun -l") == ["a"]
            background = again.popen("srun sleep 300")
            assert processes(tmp_path)
        assert background.returncode != 0
        assert processes(tmp_path) == []
    again.stop()
    assert traces() == before
    with pytest.raises(RuntimeError, match="not running"):
        again.run("true")


def test_a_killed_test_process_leaves_nothing(tmp_path: Path, cluster: SlurmCluster) -> None:
    before = traces()
    script = (
        "import sys, time; from pathlib import Path; from slurm_cluster import *\n"
        "cluster = SlurmCluster([Node('a'), Node('b')], Path(sys.argv[1])); cluster.start()\n"
        "cluster.popen('srun -N2 sleep 300'); cluster.run_on('b', 'sleep 300 >/dev/null 2>&1 &')\n"
        "print('up', flush=True); time.sleep(300)\n"
    )
    parent = subprocess.Popen(
        [sys.executable, "-c", script, str(tmp_path)],
        stdout=subprocess.PIPE,
        env={**os.environ, "PYTHONPATH": str(HELPERS)},
    )
    assert parent.stdout is not None
    assert parent.stdout.readline() == b"up\n"
    # The parent's command names the directory too, hence at least one more process than that.
    assert len(processes(tmp_path)) > 3
    parent.send_signal(signal.SIGKILL)
    parent.communicate()
    await_true(lambda: processes(tmp_path) == [])
    assert traces() == before


def test_a_failing_start_shows_the_logs_and_leaves_nothing(
    tmp_path: Path, cluster: SlurmCluster
) -> None:
    before = traces()
    broken = SlurmCluster([Node("a")], tmp_path, extra_conf=["SelectType=select/none_such"])
    with pytest.raises(RuntimeError, match=r"(?s)slurmctld\.out.*none_such.*slurmctld: exit"):
        broken.start()
    assert processes(tmp_path) == []
    assert traces() == before


@pytest.mark.parametrize(
    ("names", "directory", "match"),
    [
        (["a", "a"], "x", "different names"),
        (["login"], "x", "none 'login'"),
        ([], "x", "1 to 253 nodes"),
        (["a"], "x" * 100, "short path"),
        (["a"], "a space", "plain"),
    ],
)
def test_what_cannot_work_is_refused(names: list[str], directory: str, match: str) -> None:
    with pytest.raises(ValueError, match=match):
        SlurmCluster([Node(name) for name in names], Path("/tmp") / directory)


def test_without_slurm_a_test_is_skipped_unless_slurm_is_required(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(slurm_cluster, "PATH", "/nowhere")
    with pytest.raises(SlurmUnavailable, match=r"slurmctld.*`make slurm`") as caught:
        SlurmCluster([Node("a")], tmp_path).start()
    monkeypatch.delenv("SLURM_RESOLVER_REQUIRE_SLURM", raising=False)
    with pytest.raises(pytest.skip.Exception, match="make slurm"):
        slurm_or_skip(caught.value)
    monkeypatch.setenv("SLURM_RESOLVER_REQUIRE_SLURM", "1")
    with pytest.raises(SlurmUnavailable):
        slurm_or_skip(caught.value)
