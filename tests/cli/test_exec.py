"""Programs that know nothing of Slurm, started unchanged."""

from __future__ import annotations

import json
import os
import re
import shlex
import signal
import subprocess
import sys
from typing import Any, Dict, List

import pytest
from task_variables import TASK

import slurm_resolver as sr
from slurm_resolver.cli import main
from slurm_resolver.cli.exec_variables import FilledIn

COMMAND = [sys.executable, "-m", "slurm_resolver", "exec"]


@pytest.fixture
def task(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in TASK.items():
        monkeypatch.setenv(name, value)


def step_of(tasks: int) -> Dict[str, str]:
    """What makes the task's step one of many tasks, two on each node."""
    return {
        "SLURM_STEP_NUM_TASKS": str(tasks),
        "SLURM_STEP_NODELIST": f"n[9-{8 + tasks // 2}]",
        "SLURM_STEP_TASKS_PER_NODE": f"2(x{tasks // 2})",
    }


def run(*arguments: str, **environ: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [*COMMAND, *arguments],
        env={**os.environ, **TASK, **environ},
        capture_output=True,
        text=True,
        timeout=180,
        check=False,
    )


SHOW = "import os; print(os.environ.get('TF_CONFIG'), os.environ.get('CUDA_VISIBLE_DEVICES'))"


def test_the_program_finds_tf_config_and_its_gpus() -> None:
    done = run("--jobs", "ps=1,worker=-1", "--", sys.executable, "-c", SHOW)
    config, devices = done.stdout.strip().rsplit(" ", 1)
    assert json.loads(config) == sr.resolve({"ps": 1, "worker": -1}, environ=TASK).tf_config()
    assert devices == "4,5"  # its neighbour, the ps, uses none


def test_only_who_asks_for_it_gets_another_strategy() -> None:
    plain = json.loads(run("--format", "json", PYTHONPATH="/of/mine").stdout)
    replaced = json.loads(
        run("--replace-strategy", "--format", "json", PYTHONPATH="/of/mine").stdout
    )
    assert replaced.pop("SLURM_RESOLVER_REPLACE") == "strategy"
    first, _, rest = replaced.pop("PYTHONPATH").partition(":")
    assert os.path.exists(os.path.join(first, "sitecustomize.py"))
    assert rest == "/of/mine"
    assert replaced == plain


def test_the_evaluator_as_tf_config_has_it() -> None:
    jobs = "chief=1,evaluator=1,worker=-1"
    done = run("--jobs", jobs, "--format", "json")
    config = json.loads(json.loads(done.stdout)["TF_CONFIG"])
    assert config["task"] == {"type": "evaluator", "index": 0}
    assert list(config["cluster"]) == ["chief", "worker"]


def test_arguments_are_filled_in() -> None:
    words = "{job} {index} {rank} {address} {ps_hosts} {worker_hosts} {chief_host}| {x} {} {{rank}}"
    done = run("--jobs", "chief=1,ps=1,worker=-1", "--", "echo", words)
    assert done.stdout == (
        "worker 0 1 n9:23002 n10:23001 n9:23002,n10:23002 n9:23001| {x} {} {rank}\n"
    )


def test_a_tf_data_service_as_tf_config_has_it() -> None:
    jobs = "dispatcher=1,data_worker=1,worker=-1"
    done = run("--jobs", jobs, "--set", "SERVICE={data_service}", "--format", "json")
    variables = json.loads(done.stdout)
    assert variables["SERVICE"] == "grpc://n10:23002"
    assert json.loads(variables["TF_CONFIG"]) == {
        "cluster": {"worker": ["n9:23001", "n10:23001"]},
        "task": {"type": "data_worker", "index": 0},
    }


def test_every_placeholder() -> None:
    filled_in = FilledIn(sr.resolve(environ=TASK))
    four = "n9:23001,n9:23002,n10:23001,n10:23002"
    for text, expected in {
        "{local_rank}/{num_tasks} {node} {host} {port}": "1/4 n9 n9 23002",
        "{main_address} {main_host} {main_port}": "n9:23001 n9 23001",
        "{hosts}": four,
        '{"a":{"b":{rank}}}': '{"a":{"b":1}}',
        "{{other}} {other} {{rank}}": "{{other}} {other} {rank}",
    }.items():
        assert filled_in.word(text) == expected
    alone = FilledIn(sr.Cluster())
    assert alone.word("{job}{index}{ps_hosts}{hosts}{num_tasks}{main_port}") == ""
    ipv6 = FilledIn(sr.resolve(environ=TASK, node_address=lambda node: f"fd77::{node[1:]}"))
    assert ipv6.word("{host} {address}") == "fd77::9 [fd77::9]:23002"


def test_variables_of_the_users_own() -> None:
    settings = ["--set", "ID={rank} of {num_tasks}", "--set", "TEXT=a=b {x y} {{rank}}"]
    variables = json.loads(run(*settings, "--format", "json", ID="7").stdout)
    assert (variables["ID"], variables["TEXT"]) == ("1 of 4", "a=b {x y} {rank}")
    assert json.loads(variables["TF_CONFIG"]) == sr.resolve(environ=TASK).tf_config()


def test_the_variables_of_other_frameworks_take_the_place_of_tf_config() -> None:
    variables = json.loads(run("--env", "jax", "--env", "dtensor", "--format", "json").stdout)
    cluster = sr.resolve(environ=TASK)
    expected = {**cluster.variables("jax"), **cluster.variables("dtensor")}
    assert expected.items() <= variables.items()
    assert "TF_CONFIG" not in variables
    done = run("--env", "torch", "--", "true", WORLD_SIZE="3")
    assert done.returncode == 2
    assert "WORLD_SIZE='3' is set already, and differs from this step's: 4." in done.stderr
    assert run("--env", "torch", "--force", "--", "true", WORLD_SIZE="3").returncode == 0


# With what Slurm shows rank 1 of the node's two GPUs, what a program of torch's sees, and is told.
TORCH_GPUS = {
    "all of the node": ({}, "4,5", ""),
    "its own": (
        {
            "CUDA_VISIBLE_DEVICES": "5",
            "SLURMD_TRES_BIND": "gpu:per_task:1",
            "SLURM_GPUS_ON_NODE": "2",
        },
        "5",
        "LOCAL_RANK is 1, but Slurm shows this task 1 of the node's GPUs",
    ),
}


@pytest.mark.parametrize(("given", "seen", "told"), TORCH_GPUS.values(), ids=TORCH_GPUS)
def test_programs_of_torch_see_the_gpus_that_local_rank_counts(
    given: Dict[str, str], seen: str, told: str
) -> None:
    done = run(
        "--env", "torch", "--", "sh", "-c", "echo $LOCAL_RANK $CUDA_VISIBLE_DEVICES", **given
    )
    assert done.stdout == f"1 {seen}\n"
    assert (told in done.stderr) if told else not done.stderr


def test_for_eval() -> None:
    done = run("--format", "env")
    script = f'{done.stdout}\nprintf \'%s|%s\' "$TF_CONFIG" "$CUDA_VISIBLE_DEVICES"'
    shell = subprocess.run(["sh", "-c", script], capture_output=True, text=True, check=True)
    config, devices = shell.stdout.split("|")
    assert json.loads(config) == sr.resolve(environ=TASK).tf_config()
    assert devices == "5"


def test_the_program_replaces_the_process() -> None:
    with subprocess.Popen(
        [*COMMAND, "--", "sh", "-c", "echo $$; exec sleep 300"],
        env={**os.environ, **TASK},
        stdout=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stdout is not None
        assert int(process.stdout.readline()) == process.pid
        process.send_signal(signal.SIGUSR1)
        assert process.wait(timeout=180) == -signal.SIGUSR1
    assert run("--", "sh", "-c", "exit 7").returncode == 7


def test_a_tf_config_that_is_set_already() -> None:
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
        (["--", "no-such-program"], "'no-such-program' is not a program"),
        (["--jobs", "ps=9", "--", "true"], "need 9 tasks"),
        (["--set", "RANK", "--", "true"], "--set 'RANK': expected NAME=VALUE"),
        (["--set", "A-B=1", "--", "true"], "--set 'A-B=1': expected NAME=VALUE"),
        (["--set", "A={rnak}", "--", "true"], "--set A: {rnak} is none of job, index, rank"),
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
        timeout=180,
        check=True,
    )
    assert done.stdout.startswith("None")


# Signals, open files and variables as a program finds them; Python itself would change some.
SELF = "grep -E 'SigBlk|SigIgn' /proc/self/status; ls /proc/self/fd; env"


def test_the_program_does_not_get_what_python_sets() -> None:
    """In the C locale Python sets LC_CTYPE, and it ignores two signals: not so the program."""
    found = []
    for before in ([], [*COMMAND, "--"]):
        done = subprocess.run(
            ["env", "-i", f"PATH={os.environ['PATH']}", *before, "sh", "-c", SELF],
            capture_output=True,
            text=True,
            timeout=180,
            check=True,
        )
        found.append(done.stdout)
    assert found[0] == found[1]


def test_a_locale_that_was_set_stays() -> None:
    assert run("--", "printenv", "LC_CTYPE", LC_CTYPE="C.UTF-8").stdout == "C.UTF-8\n"


def test_words_reach_the_program_as_they_are() -> None:
    words = [b"a b", b"", b"--", b"--wait", b"it's", b"\xff", "ü".encode()]
    done = subprocess.run(
        [*COMMAND, "--", "printf", "%s|", *words],
        env={**os.environ, **TASK},
        stdout=subprocess.PIPE,
        timeout=180,
        check=True,
    )
    assert done.stdout == b"".join(word + b"|" for word in words)


@pytest.mark.parametrize(
    ("tasks", "arguments", "message"),
    [
        (2000, ["--", "true", "{worker_hosts}"], None),
        (10_000, ["--", "true"], r"TF_CONFIG is \d{6} bytes long .* expected \d+ at most"),
        (10_000, ["--format", "env"], "TF_CONFIG is"),
        (10_000, ["--format", "json"], None),
        (
            5000,
            ["--", "true", "--worker_hosts={worker_hosts},{worker_hosts},{worker_hosts}"],
            "the argument '--worker_hosts=n9:.* is .* bytes long",
        ),
    ],
)
def test_more_tasks_than_a_string_holds(tasks: int, arguments: List[str], message: Any) -> None:
    done = run(*arguments, **step_of(tasks))
    if message is None:
        assert (done.returncode, done.stderr) == (0, "")
    else:
        assert (done.returncode, done.stdout) == (2, "")
        assert re.search(f"exec: {message}", done.stderr)
        assert "SlurmClusterResolver" in done.stderr


def test_more_than_a_program_takes_in_total() -> None:
    command = shlex.join([*COMMAND, "--", "true", *8 * ["{worker_hosts}"]])
    done = subprocess.run(
        ["bash", "-c", f"ulimit -S -s 1024; exec {command}"],
        env={**os.environ, **TASK, **step_of(5000)},
        capture_output=True,
        text=True,
        timeout=180,
        check=False,
    )
    assert done.returncode == 2
    assert "the arguments and the environment together are longer" in done.stderr


def test_a_long_tf_config_does_not_fill_the_log() -> None:
    done = run("--", "true", TF_CONFIG='{"cluster": {}}', **step_of(2000))
    assert done.returncode == 2
    assert len(done.stderr) < 3000


@pytest.mark.parametrize("seconds", ["0", "-1", "nan", "inf", "soon"])
def test_seconds_to_wait(seconds: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["exec", f"--wait={seconds}", "--", "true"])
    assert ended.value.code == 2
    assert f"{seconds!r}: expected a number of seconds above 0" in capsys.readouterr().err


def test_where_no_worker_can_come_back() -> None:
    for jobs, status in (("worker=-1", 2), ("ps=1,worker=-1", 2), ("chief=1,ps=1,worker=-1", 0)):
        done = run("--jobs", jobs, "--restart-workers", "2", "--", "true")
        assert done.returncode == status
        told = "--restart-workers 2: this step has the jobs" in done.stderr
        assert told == bool(status)
        assert told == ("expected chief, ps and worker" in done.stderr)
