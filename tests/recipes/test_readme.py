"""Runs the commands of README as a newcomer does, on a machine without the packages.

They run in the environment that `make demo` creates.
"""

from __future__ import annotations

import configparser
import math
import re
import shlex
from pathlib import Path

import pytest
from bare_state import BareState, shell_commands
from explained import explained
from folders import ROOT
from kinds import Strings
from slurm_cluster import SlurmCluster

COMMANDS = shell_commands(ROOT / "README.md")
ACTIVATE = ". .venv/bin/activate"
# README submits a job of the reader's own; here it trains the quick start, in fewer tasks.
SMALLER = {
    "--nodes 4 --tasks-per-node 4 --gpus-per-node 4": "--nodes 2 --tasks-per-node 2",
    "-- python train.py": "-- python examples/quick_start/train.py --epochs 2",
}
# The last line of the quick start's output.
TRAINED = r"^(?:\d: )?(.*); accuracy (?:0\.[5-9]\d|1\.00)$"


def of_kind(*words: str) -> Strings:
    return [command for command in COMMANDS if command.split()[0] in words]


@pytest.fixture(scope="module")
def bare_state(tmp_path_factory: pytest.TempPathFactory) -> BareState:
    """A fresh clone."""
    return BareState(tmp_path_factory.mktemp("new"))


@pytest.fixture(scope="module")
def demo(bare_state: BareState) -> str:
    """The output of `make demo`."""
    return bare_state.run("make demo", timeout=1200)


@pytest.mark.nightly  # TensorFlow is installed once more
@pytest.mark.tensorflow
@pytest.mark.newest
def test_the_demo_trains(bare_state: BareState, demo: str) -> None:
    installing, announced, training = demo.partition("Two workers train")
    assert announced
    # The size of the download comes before pip's output.
    assert " to download, " in installing.partition("Obtaining")[0]
    environment = bare_state.checkout / ".venv"
    assert {tool.name for tool in (environment / "bin").iterdir()}.isdisjoint(
        {"pytest", "mypy", "ruff", "nox"}
    )
    # The whole output of both workers, without noise from TensorFlow.
    shown = training.splitlines()[1:]
    progress = r"Epoch \d/\d|\d+/\d+ - .* - accuracy: [\d.e-]+ - loss: [\d.e-]+"
    expected = rf"0: ({progress}|slurm_resolver: usage of fit: .*)"
    assert [line for line in shown[:-2] if not re.fullmatch(expected, line)] == []
    assert re.findall(TRAINED, shown[-2]) == ["both workers hold the same weights"]
    assert ACTIVATE in shown[-1]


@pytest.mark.nightly  # TensorFlow is installed once more
@pytest.mark.tensorflow
@pytest.mark.newest
@pytest.mark.parametrize("command", of_kind("slurm-resolver", "python", "srun", "sbatch"))
@pytest.mark.usefixtures("demo")
def test_each_command_runs(real_slurm: SlurmCluster, bare_state: BareState, command: str) -> None:
    script = f"set -e\n{ACTIVATE}\n{command}"
    for shown, smaller in SMALLER.items():
        script = script.replace(shown, smaller)
    if command in of_kind("srun"):
        output = real_slurm.run(
            script,
            cwd=bare_state.checkout,
            env=bare_state.environ,
            timeout=300,
        ).stdout
    elif command in of_kind("sbatch"):
        output = run_batch_file(real_slurm, bare_state, script)
    else:
        output = bare_state.run(script, status=int(" explain" in command))
    if "quick_start/train.py" in command and ">" not in command:
        assert re.findall(TRAINED, output, re.M) == [result_of(command)]


def result_of(command: str) -> str:
    """Returns the result that the quick start prints for the command's number of tasks."""
    tasks = math.prod(map(int, re.findall(r"(?:-n|--nodes|--\w*tasks\S*?)[ =](\d+)", command)))
    few = {1: "trained alone", 2: "both workers hold the same weights"}
    return few.get(tasks, f"all {tasks} workers hold the same weights")


def run_batch_file(slurm: SlurmCluster, bare_state: BareState, script: str) -> str:
    """Submits the batch file, waits until the job ends, and returns the job's output."""
    done = slurm.run(
        script.replace("sbatch ", "sbatch --wait --output=job.out ", 1),
        cwd=bare_state.checkout,
        env=bare_state.environ,
        timeout=300,
        status=None,
    )
    output = (bare_state.checkout / "job.out").read_text(encoding="utf-8")
    assert done.returncode == 0, output
    assert len(re.findall(TRAINED, output, re.M)) == 1
    assert re.findall(r"^\d: (\w+) +(warning|failed)  ", output, re.M) == []
    assert explained(output.splitlines()) == []
    return output


@pytest.mark.nightly  # pip makes an environment and downloads what builds the package
@pytest.mark.parametrize("command", of_kind("pip"))
def test_pip_can_install_the_package(command: str, tmp_path: Path) -> None:
    words = shlex.split(command)
    match = re.fullmatch(r"\.\[([\w,-]+)\]", words[-1])
    assert words[:2] == ["pip", "install"]
    assert match is not None
    metadata = configparser.ConfigParser()
    metadata.read(ROOT / "setup.cfg")
    assert set(match[1].split(",")) <= set(metadata["options.extras_require"])
    # --no-deps, because downloading TensorFlow once more would test nothing new.
    state = BareState(tmp_path)
    dry = shlex.join([*words[:-1], "--dry-run", "--no-deps", "--quiet", "."])
    # Debian's Python allows packages only in a virtual environment, as README says.
    state.run(f"python3 -m venv own && . own/bin/activate && {dry}")
