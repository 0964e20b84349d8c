"""Programs that know nothing of Slurm, started unchanged."""

from __future__ import annotations

import json
import os
import shlex
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any, Dict, List

import pytest
from conftest import TASK
from slurm_cluster import SlurmCluster

import slurm_resolver as sr
from slurm_resolver.cli import main
from slurm_resolver.cli.exec import fill

COMMAND = [sys.executable, "-m", "slurm_resolver", "exec"]


@pytest.fixture
def task(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in TASK.items():
        monkeypatch.setenv(name, value)


def run(*arguments: str, **environ: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [*COMMAND, *arguments],
        env={**os.environ, **TASK, **environ},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


SHOW = "import os; print(os.environ.get('TF_CONFIG'), os.environ.get('CUDA_VISIBLE_DEVICES'))"


def test_the_program_finds_tf_config_and_its_gpus() -> None:
    done = run("--jobs", "ps=1,worker=-1", "--", sys.executable, "-c", SHOW)
    config, devices = done.stdout.strip().rsplit(" ", 1)
    assert json.loads(config) == sr.resolve({"ps": 1, "worker": -1}, environ=TASK).tf_config()
    assert devices == "4,5"  # its neighbour, the ps, uses none


def test_the_evaluator_as_tf_config_has_it() -> None:
    jobs = "chief=1,evaluator=1,worker=-1"
    done = run("--jobs", jobs, "--format", "json")
    config = json.loads(json.loads(done.stdout)["TF_CONFIG"])
    assert config["task"] == {"type": "evaluator", "index": 0}
    assert list(config["cluster"]) == ["chief", "worker"]


def test_arguments_are_filled_in() -> None:
    words = "{job} {index} {rank} {address} {ps_hosts} {worker_hosts} {chief_host}| {x} {} {{rank}}"
    done = run("--jobs", "chief=1,ps=1,worker=-1", "--", "echo", words)
    assert done.stdout == ("ps 0 1 n9:23002 n9:23002 n10:23001,n10:23002 n9:23001| {x} {} {1}\n")
    assert fill("{job}{index}{ps_hosts}", sr.Cluster()) == ""


def test_for_eval() -> None:
    done = run("--format", "env")
    script = f'{done.stdout}\nprintf \'%s|%s\' "$TF_CONFIG" "$CUDA_VISIBLE_DEVICES"'
    shell = subprocess.run(["sh", "-c", script], capture_output=True, text=True, check=True)
    config, devices = shell.stdout.split("|")
    assert json.loads(config) == sr.resolve(environ=TASK).tf_config()
    assert devices == "5"


def test_it_becomes_the_program() -> None:
    with subprocess.Popen(
        [*COMMAND, "--", "sh", "-c", "echo $$; exec sleep 300"],
        env={**os.environ, **TASK},
        stdout=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stdout is not None
        assert int(process.stdout.readline()) == process.pid
        process.send_signal(signal.SIGUSR1)
        assert process.wait(timeout=60) == -signal.SIGUSR1
    assert run("--", "sh", "-c", "exit 7").returncode == 7


def test_a_tf_config_that_is_there_already() -> None:
    own = json.dumps(sr.resolve(environ=TASK).tf_config(), indent=1)
    assert run("--", "true", TF_CONFIG=own).returncode == 0
    for other in ('{"cluster": {}}', "no JSON"):
        done = run("--", "true", TF_CONFIG=other)
        assert done.returncode == 2
        assert f"TF_CONFIG={other!r} is set already, and differs" in done.stderr
        assert run("--force", "--", "true", TF_CONFIG=other).returncode == 0


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([], "expected either a command"),
        (["--format", "env", "--", "true"], "expected either a command"),
        (["--", "no-such-program"], "'no-such-program' is no program"),
        (["--jobs", "ps=9", "--", "true"], "need 9 tasks"),
    ],
)
@pytest.mark.usefixtures("task")
def test_errors(arguments: List[str], message: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["exec", *arguments]) == 2
    assert message in capsys.readouterr().err


def test_without_slurm_the_program_runs_alone() -> None:
    environ: Dict[str, str] = {k: v for k, v in os.environ.items() if not k.startswith("SLURM")}
    done = subprocess.run(
        [*COMMAND, "--wait", "5", "--", sys.executable, "-c", SHOW],
        env=environ,
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    assert done.stdout.startswith("None")


@pytest.mark.slurm
@pytest.mark.parametrize("missing", [False, True])
def test_the_tasks_wait_for_each_other(
    real_slurm: SlurmCluster, tmp_path: Path, missing: bool
) -> None:
    start = f"{shlex.join(COMMAND)} --wait 3 -- touch {tmp_path}/{{rank}}"
    script = f'[ "$SLURM_PROCID" != 2 ] || exit 0; {start}' if missing else start
    step = f"srun -w n9,n10 -N2 --ntasks-per-node=2 bash -c {shlex.quote(script)}"
    done = real_slurm.run(step, check=False)
    started: Any = sorted(path.name for path in tmp_path.iterdir())
    if missing:
        assert (done.returncode, started) == (1, [])
        assert done.stderr.count("1 of 4 tasks are missing") == 3
        assert "rank 2 (worker 2 on n10)" in done.stderr
    else:
        assert (done.returncode, started) == (0, list("0123"))
