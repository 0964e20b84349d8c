"""`slurm-resolver exec` starts unmodified programs that have no code for Slurm."""

from __future__ import annotations

import json
import os
import signal
import sys

import pytest
from captured import Captured, Patch, set_all
from kinds import Completed, Strings, Texts
from local_run import COMMAND, captured, piped, refused
from task_variables import TASK

import slurm_resolver as sr
from slurm_resolver.cli.exec import fill_in

EXEC = [*COMMAND, "exec"]
TELL = [
    sys.executable,
    "-c",
    "import json, os; print(json.dumps(dict(os.environ)))",
]


def run(*arguments: str, **environ: str) -> Completed:
    return captured(
        [*EXEC, *arguments],
        env={
            **os.environ,
            **TASK,
            **environ,
        },
    )


def variables(*options: str, **environ: str) -> Texts:
    """Returns the environment of a program that exec has started."""
    done = run(*options, "--", *TELL, **environ)
    assert (done.returncode, done.stderr) == (0, "")
    told: Texts = json.loads(done.stdout)
    return told


def test_the_program_finds_tf_config_and_its_gpus() -> None:
    told = variables("--jobs", "chief=1,worker=-1", TF_CONFIG='{"cluster": {}}')
    cluster = sr.resolve({"chief": 1, "worker": -1}, environ=TASK)
    assert json.loads(told["TF_CONFIG"]) == cluster.tf_config()
    assert told["CUDA_VISIBLE_DEVICES"] == "5"  # the chief on the same node uses the other one


def test_every_placeholder() -> None:
    texts = {
        "{local_rank}/{num_tasks} {node} {host} {port}": "1/4 n9 n9 23002",
        "{main_address} {main_host} {main_port}": "n9:23001 n9 23001",
        "{hosts}": "n9:23001,n9:23002,n10:23001,n10:23002",
        '{"a":{"b":{rank}}}': '{"a":{"b":1}}',
        "{{other}} {other} {{rank}}": "{{other}} {other} {rank}",
    }
    assert fill_in(list(texts), sr.resolve(environ=TASK)) == list(texts.values())
    assert fill_in(["{job}{index}{ps_hosts}{hosts}{main_port}"], sr.Cluster()) == [""]
    assert fill_in(
        ["{host} {address}"],
        sr.resolve(environ=TASK, node_address=lambda node: f"fd77::{node[1:]}"),
    ) == ["fd77::9 [fd77::9]:23002"]


def test_the_variables_of_other_frameworks_take_the_place_of_tf_config() -> None:
    told = variables("--env", "jax", "--env", "keras-distribution")
    cluster = sr.resolve(environ=TASK)
    assert cluster.variables("jax").items() <= told.items()
    assert cluster.variables("keras-distribution").items() <= told.items()
    assert "TF_CONFIG" not in told
    # a PyTorch program uses its node's GPU with the number LOCAL_RANK
    told = variables("--env", "torch")
    assert (told["LOCAL_RANK"], told["CUDA_VISIBLE_DEVICES"]) == ("1", "4,5")


def test_the_program_replaces_the_process() -> None:
    command = [*EXEC, "--", "sh", "-c", "echo $$; exec sleep 300"]
    with piped(command, env={**os.environ, **TASK}) as process:
        assert int(process.stdout.readline()) == process.pid
        process.send_signal(signal.SIGUSR1)
        assert process.wait(timeout=180) == -signal.SIGUSR1
    assert run("--", "sh", "-c", "exit 7").returncode == 7


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([], "no command"),
        (["--", "no-such-program"], "'no-such-program' is not a program"),
        (["--jobs", "ps=9", "--", "true"], "'ps': 9} do not fit the 4 tasks"),
    ],
)
def test_errors(
    arguments: Strings,
    message: str,
    monkeypatch: Patch,
    capsys: Captured,
) -> None:
    set_all(monkeypatch, TASK)
    assert message in refused(capsys, "exec", *arguments)


def test_without_slurm_the_program_runs_alone() -> None:
    program = ["sh", "-c", "echo ${TF_CONFIG-none}"]
    assert captured([*EXEC, "--wait", "5", "--", *program], status=0).stdout == "none\n"


def test_the_program_does_not_get_what_python_sets() -> None:
    """Python ignores two signals, but the program does not ignore them."""
    script = "grep -E 'SigBlk|SigIgn' /proc/self/status; ls /proc/self/fd"
    direct, started = (
        # With a path, because Python 3.13 starts programs without a path differently.
        captured([*before, "/bin/sh", "-c", script], status=0).stdout
        for before in ([], [*EXEC, "--"])
    )
    assert direct == started


def test_more_tasks_than_linux_passes() -> None:
    done = run(
        "--",
        "true",
        SLURM_STEP_NUM_TASKS="10000",
        SLURM_STEP_NODELIST="n[9-5008]",
        SLURM_STEP_TASKS_PER_NODE="2(x5000)",
    )
    assert done.returncode == 2
    assert "'true' cannot be started (Argument list too long). " in done.stderr
