"""The commands' exact output and exit status."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any, Dict, List

import conftest
import pytest

import slurm_resolver
from slurm_resolver.cli import main

ROOT = Path(__file__).parent.parent
COMMAND = [sys.executable, "-m", "slurm_resolver"]

TASK = {**conftest.TASK, "SLURM_DISTRIBUTION": "cyclic"}


def run(*arguments: str, **keywords: Any) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [*COMMAND, *arguments], capture_output=True, text=True, timeout=60, check=False, **keywords
    )


class TestShow:
    @pytest.fixture
    def task(self, monkeypatch: pytest.MonkeyPatch) -> None:
        for name, value in TASK.items():
            monkeypatch.setenv(name, value)

    @pytest.mark.usefixtures("task")
    def test_json(self, capsys: pytest.CaptureFixture[str]) -> None:
        assert main(["show", "--jobs", "ps=1,worker=-1", "--json"]) == 0
        shown = json.loads(capsys.readouterr().out)
        assert shown == slurm_resolver.resolve({"ps": 1, "worker": -1}).to_dict()
        assert shown["self"]["gpus"] == ["4"]

    @pytest.mark.usefixtures("task")
    def test_text(self, capsys: pytest.CaptureFixture[str]) -> None:
        assert main(["show", "--jobs", "ps=1,worker=-1"]) == 0
        assert (
            capsys.readouterr().out
            == """\
job step 42.0: 4 tasks on 2 nodes, cyclic distribution (from environment), ports from \
SLURM_STEP_RESV_PORTS
node  rank  local  task      address
n9       0      0  ps 0      n9:23001
         2      1  worker 1  n9:23002
n10      1      0  worker 0  n10:23001  (this task)
         3      1  worker 2  n10:23002
GPUs of the tasks on n10:
  rank 1: 4 (CUDA_VISIBLE_DEVICES split by SLURM_LOCALID)  (this task)
  rank 3: 5 (CUDA_VISIBLE_DEVICES split by SLURM_LOCALID)
"""
        )

    @pytest.mark.usefixtures("task")
    def test_a_task_whose_job_uses_no_gpu(
        self, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
    ) -> None:
        monkeypatch.setenv("SLURM_PROCID", "0")
        assert main(["show", "--jobs", "ps=1,worker=-1"]) == 0
        assert capsys.readouterr().out.endswith("""\
GPUs of the tasks on n9:
  rank 0: none (this job uses no GPU (gpu_jobs))  (this task)
  rank 2: 4,5 (CUDA_VISIBLE_DEVICES, the only task on the node that uses GPUs)
""")
        assert main(["show", "--jobs", "ps=1,worker=-1", "--gpu-jobs", "ps,worker"]) == 0
        assert "rank 0: 4 (CUDA_VISIBLE_DEVICES split by SLURM_LOCALID)" in capsys.readouterr().out

    def test_devices_that_slurm_bound_are_known_to_each_task_alone(
        self, task: None, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
    ) -> None:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "4")
        monkeypatch.setenv("SLURM_GPUS_ON_NODE", "2")
        assert main(["show"]) == 0
        assert capsys.readouterr().out.endswith("""\
GPUs of the tasks on n10:
  rank 1: 4 (CUDA_VISIBLE_DEVICES, bound to the task by Slurm)  (this task)
  rank 3: unknown (known to the task alone)
""")

    def test_a_terminal_gets_colours(
        self, task: None, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
    ) -> None:
        monkeypatch.setattr("sys.stdout.isatty", lambda: True)
        monkeypatch.setenv("FORCE_COLOR", "1")
        monkeypatch.setenv("COLUMNS", "80")
        assert main(["show", "--jobs", "ps=1,worker=-1"]) == 0
        lines = capsys.readouterr().out.splitlines()
        assert sum("\x1b[36m" in line for line in lines if "ps 0" in line) == 1
        assert sum("\x1b[32m" in line for line in lines if "worker" in line) == 3

    def test_a_step_from_options(self, capsys: pytest.CaptureFixture[str]) -> None:
        options = "--nodelist n[9-10] --tasks-per-node 3,2 --distribution plane=2 --port-base 2222"
        more = "--jobs chief=1,ps=1,worker=-1 --node-address=-ib0"
        assert main(["show", *options.split(), *more.split(), "--json"]) == 0
        shown = json.loads(capsys.readouterr().out)
        assert (shown["self"], shown["job_id"], shown["layout_source"]) == (None, None, "options")
        assert [(task["job"], task["address"]) for task in shown["tasks"]] == [
            ("chief", "n9-ib0:2222"),
            ("ps", "n9-ib0:2223"),
            ("worker", "n10-ib0:2222"),
            ("worker", "n10-ib0:2223"),
            ("worker", "n9-ib0:2224"),
        ]

    def test_one_count_is_for_every_node(self, capsys: pytest.CaptureFixture[str]) -> None:
        assert main(["show", "--nodelist", "n[1-3]", "--tasks-per-node", "2", "--json"]) == 0
        assert len(json.loads(capsys.readouterr().out)["tasks"]) == 6

    @pytest.mark.parametrize(
        ("arguments", "message"),
        [
            ([], "there is no Slurm here"),
            (["--distribution", "cyclic"], "--nodelist"),
            (["--nodelist", "n[3-1]"], "SLURM_STEP_NODELIST='n[3-1]'"),
            (["--nodelist", "n1", "--distribution", "heap"], "SLURM_DISTRIBUTION='heap'"),
            (["--nodelist", "n1", "--jobs", "ps=2"], "need 2 tasks, but the job step has 1"),
            (["--nodelist", "n[1-2]", "--distribution", "arbitrary"], "is not to be found"),
        ],
    )
    def test_errors(
        self, arguments: List[str], message: str, capsys: pytest.CaptureFixture[str]
    ) -> None:
        assert main(["show", *arguments]) == 2
        captured = capsys.readouterr()
        assert captured.out == ""
        assert captured.err.startswith("slurm-resolver show: ")
        assert message in captured.err

    @pytest.mark.parametrize("jobs", ["ps", "ps=", "=1", "ps=1,ps=2", "ps=one", ""])
    def test_jobs_that_cannot_be_read(self, jobs: str, capsys: pytest.CaptureFixture[str]) -> None:
        with pytest.raises(SystemExit) as caught:
            main(["show", "--jobs", jobs])
        assert caught.value.code == 2
        assert "argument --jobs: " in capsys.readouterr().err

    def test_a_reader_that_goes_away(self) -> None:
        step = ["--nodelist", "n[1-9999]", "--tasks-per-node", "4"]
        with subprocess.Popen(
            [*COMMAND, "show", *step], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        ) as process:
            assert process.stdout is not None
            assert process.stderr is not None
            process.stdout.readline()
            process.stdout.close()
            assert process.stderr.read() == ""
            assert process.wait(timeout=60) == 0


def test_version_and_help(capsys: pytest.CaptureFixture[str]) -> None:
    for option in ("--version", "--help"):
        with pytest.raises(SystemExit) as caught:
            main([option])
        assert caught.value.code == 0
    printed = capsys.readouterr().out
    assert printed.startswith(f"slurm-resolver {slurm_resolver.__version__}\n")
    assert "show the cluster of this Slurm step" in printed


@pytest.mark.parametrize("arguments", [[], ["fly"], ["show", "--placement", "even"]])
def test_usage_errors(arguments: List[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as caught:
        main(arguments)
    assert caught.value.code == 2
    assert capsys.readouterr().err.startswith("usage: slurm-resolver")


def test_no_command_imports_tensorflow(tmp_path: Path) -> None:
    (tmp_path / "tensorflow.py").write_text("raise SystemExit('TensorFlow was imported')")
    environ: Dict[str, str] = {**os.environ, "PYTHONPATH": str(tmp_path)}
    for arguments in (["show", "--nodelist", "n1"], ["run", "--", "true"], ["--version"]):
        done = run(*arguments, env=environ)
        assert (done.returncode, done.stderr) == (0, "")


SLOW_MODULES = "asyncio ctypes dataclasses inspect logging rich subprocess threading"


@pytest.mark.parametrize(
    "arguments",
    [["exec", "--format", "env"], ["show", "--jobs", "ps=1,worker=-1"], ["show", "--json"]],
)
def test_commands_that_start_in_every_task_import_little(arguments: List[str]) -> None:
    """What is named here would more than double the time that the command takes to start."""
    script = (
        "import sys; from slurm_resolver.cli import main\n"
        f"main({arguments!r})\n"
        f"print(sorted(set({SLOW_MODULES.split()!r}) & set(sys.modules)))"
    )
    done = subprocess.run(
        [sys.executable, "-S", "-c", script],  # -S: what a site's .pth files import is not ours
        env={"PATH": os.environ["PATH"], "PYTHONPATH": str(ROOT), **TASK},
        capture_output=True,
        text=True,
        check=True,
        timeout=60,
    )
    assert done.stdout.splitlines()[-1] == "[]"
