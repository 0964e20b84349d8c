"""Tests of the test cluster itself: what the other tests take for granted."""

from __future__ import annotations

import os
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

NODES = [Node("n8", gpus=4), Node("n9", gpus=4), Node("n10")]


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


@pytest.mark.parametrize(
    ("command", "printed"),
    [
        ("srun -w n8,n9 -n4 --ntasks-per-node=2 -m cyclic hostname", "n8 n8 n9 n9"),
        ("srun -n3 -m arbitrary -w n10,n8,n10 hostname", "n10 n10 n8"),
        ("srun -n2 -w n9 : -n3 -w n8,n10 hostname", "n10 n8 n8 n9 n9"),
        ("srun -w n8,n9 -n2 --gpus-per-node=4 printenv CUDA_VISIBLE_DEVICES", "0,1,2,3 0,1,2,3"),
        ("srun -w n8 -n2 --gpus-per-task=2 printenv CUDA_VISIBLE_DEVICES", "0,1 2,3"),
    ],
)
def test_slurm_places_tasks_and_grants_gpus(
    cluster: SlurmCluster, command: str, printed: str
) -> None:
    assert sorted(cluster.run(command).stdout.split()) == printed.split()


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


def test_a_time_out_ends_the_command_and_its_job(cluster: SlurmCluster) -> None:
    with pytest.raises(TimeoutError, match=r"(?s)longer than 0\.5 s.*so far"):
        cluster.run("echo so far; srun -J late sleep 300", timeout=0.5)
    await_true(lambda: cluster.run("squeue -h -n late").stdout == "")
    assert "sleep 300" not in cluster.run("ps -e -o args").stdout


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
