"""README's commands as a newcomer types them, on a machine that has nothing.

They run in the environment that `make demo` makes. Where root tests, another user types them, who
owns nothing but the checkout and a home.
"""

from __future__ import annotations

import configparser
import math
import os
import re
import shlex
import shutil
import tempfile
import warnings
from pathlib import Path
from typing import Iterator, List

import pytest
from bare_state import BareState, other_user, shell_commands
from folders import ROOT
from slurm_cluster import Node, SlurmCluster, started
from slurm_installation import PATH, Installation

from slurm_resolver.diagnostics.log_messages import explain

COMMANDS = shell_commands(ROOT / "README.md")
ACTIVATE = ". .venv/bin/activate"
# how the quick start ends
TRAINED = r"^(?:\d: )?(.*); accuracy (?:0\.[5-9]\d|1\.00)$"


def of_kind(*words: str) -> List[str]:
    return [command for command in COMMANDS if command.split()[0] in words]


def test_every_command_is_of_a_kind_that_is_tested_here() -> None:
    # an environment of one's own is made and entered as for pip below
    kinds = ("make", "python3", ".", "pip", "slurm-resolver", "python", "srun", "sbatch")
    assert sorted(COMMANDS) == sorted(of_kind(*kinds))
    assert {"make demo", ACTIVATE} <= set(COMMANDS)


def test_readme_tells_how_long_the_tests_take() -> None:
    readme = " ".join((ROOT / "README.md").read_text(encoding="utf-8").split())
    (told,) = re.findall(r"^TEST_TIME = (.*)$", (ROOT / "Makefile").read_text(), re.M)
    assert "make test" in readme
    assert told in readme


@pytest.fixture(scope="module")
def folder() -> Iterator[Path]:
    """A folder that every user can reach, which those of pytest are not."""
    with tempfile.TemporaryDirectory(prefix="bare") as made:
        os.chmod(made, 0o755)
        yield Path(made)


@pytest.fixture(scope="module")
def slurm(installation: Installation, folder: Path) -> Iterator[SlurmCluster]:
    """Two nodes, of which every user may read the settings."""
    nodes = [Node("n8"), Node("n9")]
    with started(SlurmCluster(nodes, folder / "slurm", installation=installation)) as cluster:
        yield cluster


@pytest.fixture(scope="module")
def bare_state(installation: Installation, folder: Path) -> BareState:
    """A fresh clone, where it can be that of another user than the one who tests."""
    (folder / "new").mkdir()
    srun = shutil.which("srun", path=installation.before(PATH))
    user = other_user([srun] if srun else [])
    if user is None and not os.geteuid():
        warnings.warn(
            "README is typed by root: no other user has python3 with ensurepip, and srun",
            stacklevel=1,
        )
    return BareState(folder / "new", user)


@pytest.fixture(scope="module")
def demo(bare_state: BareState) -> str:
    """What `make demo` prints."""
    done = bare_state.run("make demo", timeout=1200)
    assert done.returncode == 0, done.stdout
    return done.stdout


@pytest.mark.nightly  # TensorFlow is installed once more
@pytest.mark.tensorflow
@pytest.mark.slurm
@pytest.mark.newest
def test_the_demo_trains(bare_state: BareState, demo: str) -> None:
    installing, told, training = demo.partition("Two workers train")
    assert told
    # what will come stands before all that pip says
    assert " to download, " in installing.partition("Obtaining")[0]
    environment = bare_state.checkout / ".venv"
    user = bare_state.user
    assert environment.stat().st_uid == (os.geteuid() if user is None else user.uid)
    tools = {"pytest", "mypy", "ruff", "nox"}
    assert {tool.name for tool in (environment / "bin").iterdir()}.isdisjoint(tools)
    # nothing but what a person wants to read, though it is all that the two have printed
    shown = training.splitlines()[1:]
    progress = r"0: (Epoch \d/\d|\d+/\d+ - .* - accuracy: [\d.e-]+ - loss: [\d.e-]+)"
    assert [line for line in shown[:-2] if not re.fullmatch(progress, line)] == []
    assert re.findall(TRAINED, shown[-2]) == ["both workers hold the same weights"]
    assert ACTIVATE in shown[-1]


@pytest.mark.nightly  # TensorFlow is installed once more
@pytest.mark.tensorflow
@pytest.mark.slurm
@pytest.mark.newest
@pytest.mark.parametrize("command", of_kind("slurm-resolver", "python", "srun", "sbatch"))
@pytest.mark.usefixtures("demo")
def test_each_command_runs_as_it_stands(
    slurm: SlurmCluster, bare_state: BareState, command: str
) -> None:
    script = f"set -e\n{ACTIVATE}\n{command}"
    if command in of_kind("srun"):
        words = bare_state.words(script)
        done = slurm.run(words, cwd=bare_state.checkout, env=bare_state.environ, timeout=300)
        output = done.stdout
    elif command in of_kind("sbatch"):
        output = run_batch_file(slurm, bare_state, script)
    else:
        here = bare_state.run(script)
        output = here.stdout
        assert here.returncode == int(" explain" in command), output
    if "quick_start/train.py" in command and ">" not in command:
        assert re.findall(TRAINED, output, re.M) == [sentence(command)]


def sentence(command: str) -> str:
    """Returns what the quick start says in the end of as many tasks as the command starts."""
    tasks = math.prod(map(int, re.findall(r"(?:-n|--nodes|--\w*tasks\S*?)[ =](\d+)", command)))
    alone_or_two = {1: "trained alone", 2: "both workers hold the same weights"}
    return alone_or_two.get(tasks, f"all {tasks} workers hold the same weights")


def run_batch_file(slurm: SlurmCluster, bare_state: BareState, script: str) -> str:
    """Submits it, waits for its end, and returns what the job has printed."""
    waiting = script.replace("sbatch ", "sbatch --wait --output=job.out ", 1)
    words = bare_state.words(waiting)
    done = slurm.run(
        words, cwd=bare_state.checkout, env=bare_state.environ, timeout=300, check=False
    )
    output = (bare_state.checkout / "job.out").read_text(encoding="utf-8")
    assert done.returncode == 0, output
    assert len(re.findall(TRAINED, output, re.M)) == 1
    assert re.findall(r"^\d: (\w+) +(warning|failed)  ", output, re.M) == []
    assert explain(output.splitlines()) == []
    return output


@pytest.mark.parametrize("command", of_kind("pip"))
def test_what_pip_is_asked_for_can_be_installed(command: str, tmp_path: Path) -> None:
    words = shlex.split(command)
    match = re.fullmatch(r"\.\[([\w,-]+)\]", words[-1])
    assert words[:2] == ["pip", "install"]
    assert match is not None
    metadata = configparser.ConfigParser()
    metadata.read(ROOT / "setup.cfg")
    assert set(match[1].split(",")) <= set(metadata["options.extras_require"])
    # All but the extra itself: TensorFlow would be fetched once more, for nothing new.
    state = BareState(tmp_path)
    dry = shlex.join([*words[:-1], "--dry-run", "--no-deps", "--quiet", "."])
    # Debian's own Python takes no packages but in an environment, as README says.
    done = state.run(f"python3 -m venv own && . own/bin/activate && {dry}")
    assert done.returncode == 0, done.stdout


@pytest.mark.parametrize("target", ["demo", "quick", "test", "nightly"])
def test_make_knows_its_targets(target: str, tmp_path: Path) -> None:
    state = BareState(tmp_path)
    done = state.run(f"make {target} --dry-run")
    assert done.returncode == 0, done.stdout
    first = done.stdout.splitlines()[0]
    assert target != "test" or "make test takes " in first
    assert target != "demo" or "Installing tensorflow" in first
