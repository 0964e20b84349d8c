"""Programs that know nothing of Slurm, started unchanged."""

from __future__ import annotations

import json
import os
import re
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
    assert done.stdout == (
        "worker 0 1 n9:23002 n10:23001 n9:23002,n10:23002 n9:23001| {x} {} {1}\n"
    )
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


# Signals, open files and variables as a program finds them; Python itself would change some.
SELF = "grep -E 'SigBlk|SigIgn' /proc/self/status; ls /proc/self/fd; env"


def test_the_program_finds_nothing_that_python_left_behind() -> None:
    """In the C locale Python sets LC_CTYPE, and it ignores two signals: not so the program."""
    found = []
    for before in ([], [*COMMAND, "--"]):
        done = subprocess.run(
            ["env", "-i", f"PATH={os.environ['PATH']}", *before, "sh", "-c", SELF],
            capture_output=True,
            text=True,
            timeout=60,
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
        timeout=60,
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


def test_more_than_a_program_takes_in_all() -> None:
    command = shlex.join([*COMMAND, "--", "true", *8 * ["{worker_hosts}"]])
    done = subprocess.run(
        ["bash", "-c", f"ulimit -S -s 1024; exec {command}"],
        env={**os.environ, **TASK, **step_of(5000)},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 2
    assert "the arguments and the environment together are longer" in done.stderr


def test_a_long_tf_config_does_not_fill_the_log() -> None:
    done = run("--", "true", TF_CONFIG='{"cluster": {}}', **step_of(2000))
    assert done.returncode == 2
    assert len(done.stderr) < 3000


@pytest.mark.parametrize("seconds", ["0", "-1", "nan", "inf", "soon"])
def test_how_long_to_wait(seconds: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["exec", f"--wait={seconds}", "--", "true"])
    assert ended.value.code == 2
    assert f"{seconds!r}: expected a number of seconds above 0" in capsys.readouterr().err


EXEC = shlex.join(COMMAND)
JOBS = "--jobs ps=1,worker=-1"
TOLD = "echo {rank} {job} {index}"
PS_FIRST = ["0 ps 0", "1 worker 0", "2 worker 1", "3 worker 2"]
FOUR = "-w n9,n10 -N2 --ntasks-per-node=2"
HET = "--jobs ps=2,worker=-1 --het-groups ps=0,worker=1 --wait 30"

# What is run in a folder of the test's own, and the lines that come out, sorted.
STEPS = {
    "one task": (f"srun -w n9 -n1 {EXEC} --wait 30 -- {TOLD}", ["0 worker 0"]),
    "a path with spaces": (
        (
            "mkdir 'a b'; printf '#!/bin/sh\necho \"$# $1\"' > 'a b/c d'; chmod +x 'a b/c d'; "
            f"srun -w n9 -n2 {EXEC} -- './a b/c d' 'e  {{index}}'"
        ),
        ["1 e  0", "1 e  1"],
    ),
    "in a shell": (f"srun {FOUR} bash -c '{EXEC} {JOBS} -- {TOLD}'", PS_FIRST),
    "multi-prog": (
        (
            f"printf '0 {EXEC} {JOBS} -- {TOLD}\n1-3 {EXEC} {JOBS} -- {TOLD} %%o\n' > programs; "
            f"srun {FOUR} --multi-prog programs"
        ),
        ["0 ps 0", "1 worker 0 0", "2 worker 1 1", "3 worker 2 2"],
    ),
    "a heterogeneous step": (
        f"srun -w n9 -n2 {EXEC} {HET} -- {TOLD} a : -w n10,n11 -N2 -n2 {EXEC} {HET} -- {TOLD} b",
        ["0 ps 0 a", "1 ps 1 a", "2 worker 0 b", "3 worker 1 b"],
    ),
    "exec under exec": (f"srun {FOUR} {EXEC} {JOBS} -- {EXEC} {JOBS} -- {TOLD}", PS_FIRST),
    "GPUs under exec": (
        f"srun -w n9 -n3 --gpus-per-node=4 {EXEC} -- {EXEC} -- printenv CUDA_VISIBLE_DEVICES",
        ["0,1", "2", "3"],
    ),
    "standard input": (
        f"seq 3 | srun -w n9 -n2 {EXEC} --wait 30 -- cat",
        ["1", "1", "2", "2", "3", "3"],
    ),
    "the evaluator": (
        (
            f"srun -w n9 -n3 {EXEC} --jobs chief=1,evaluator=1,worker=-1 -- {sys.executable} -c '"
            'import json, os; config = json.loads(os.environ["TF_CONFIG"]); '
            'print(config["task"]["type"], *config["cluster"])\''
        ),
        ["chief chief worker", "evaluator chief worker", "worker chief worker"],
    ),
    "for eval": (
        (
            f"""srun -w n9 -n2 bash -c 'config=$({EXEC} --format env) && eval "$config" && """
            """echo "${TF_CONFIG##*, }"'"""
        ),
        ['"index": 0}}', '"index": 1}}'],
    ),
}


@pytest.mark.slurm
@pytest.mark.parametrize("name", STEPS)
def test_ways_to_start_it(real_slurm: SlurmCluster, tmp_path: Path, name: str) -> None:
    command, expected = STEPS[name]
    output = real_slurm.run(command, cwd=tmp_path).stdout
    assert sorted(output.splitlines()) == expected


@pytest.mark.slurm
def test_a_batch_script_is_no_task(real_slurm: SlurmCluster, tmp_path: Path) -> None:
    script = f'config=$({EXEC} --format env) && eval "$config"; echo "$? ${{TF_CONFIG-unset}}"'
    (tmp_path / "script").write_text(f"#!/bin/bash\n{script}\n")
    real_slurm.run(f"sbatch --wait -w n9 -n2 -o {tmp_path}/out {tmp_path}/script")
    output = (tmp_path / "out").read_text()
    assert "srun did not start it" in output
    assert output.endswith("\n2 unset\n")


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


@pytest.mark.slurm
def test_nobody_starts_where_one_has_no_program(real_slurm: SlurmCluster, tmp_path: Path) -> None:
    """Else its program would wait for ever for that of the task which has none."""
    script = f'[ "$SLURM_PROCID" != 2 ] || set -- no-such; {EXEC} --wait 3 -- "$@"'
    step = f"srun {FOUR} bash -c {shlex.quote(script)} - touch {tmp_path}/{{rank}}"
    done = real_slurm.run(step, check=False)
    assert done.returncode == 2
    assert list(tmp_path.iterdir()) == []
    assert "'no-such' is no program that can be started here" in done.stderr
    assert done.stderr.count("1 of 4 tasks are missing") == 3
