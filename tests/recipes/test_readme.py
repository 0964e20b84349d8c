"""Every command in README.md runs, and every link in the documentation leads somewhere."""

from __future__ import annotations

import configparser
import os
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path
from typing import List

import pytest
from folders import ROOT
from slurm_cluster import SlurmCluster

README = (ROOT / "README.md").read_text(encoding="utf-8")
ENVIRONMENT = {
    "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
    "TF_CPP_MIN_LOG_LEVEL": "2",
}


def commands() -> List[str]:
    blocks = re.findall(r"^```sh\n(.*?)^```$", README, re.M | re.S)
    return [line for block in blocks for line in block.replace("\\\n", " ").splitlines() if line]


def of_kind(*words: str) -> List[str]:
    return [command for command in commands() if shlex.split(command)[0] in words]


def test_every_command_is_of_a_kind_that_is_tested_here() -> None:
    kinds = ("pip", "make", "slurm-resolver", "python", "srun", "sbatch")
    assert sorted(commands()) == sorted(of_kind(*kinds))
    for kind in kinds:
        assert of_kind(kind), f"README has no {kind} command any more: drop its test"


@pytest.fixture(scope="module")
def checkout(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of what the commands use: some write into the folder that they run in."""
    folder = tmp_path_factory.mktemp("checkout")
    for name in ("examples", "tests/data"):
        shutil.copytree(ROOT / name, folder / name)
    return folder


def run(command: str, folder: Path = ROOT) -> str:
    done = subprocess.run(
        command, shell=True, cwd=folder, env={**os.environ, **ENVIRONMENT}, timeout=300,
        capture_output=True, text=True,
    )  # fmt: skip
    findings = int("slurm-resolver explain" in command)
    assert done.returncode == findings, done.stdout + done.stderr
    return done.stdout


def accuracies(output: str) -> List[str]:
    """One from each task that has trained; all workers of a strategy must have the same."""
    found = re.findall(r"test accuracy (0\.\d+)", output)
    assert len(set(found)) <= 1
    return found


@pytest.mark.tensorflow
@pytest.mark.parametrize("command", of_kind("slurm-resolver", "python"))
def test_commands_run_here(command: str, checkout: Path) -> None:
    trains = "mirrored/train.py" in command and ">" not in command
    output = run(command, checkout)
    tasks = int((re.findall(r"-n (\d+)", command) or ["1"])[0])
    assert len(accuracies(output)) == trains * tasks


@pytest.mark.slurm
@pytest.mark.tensorflow
@pytest.mark.parametrize("command", of_kind("srun"))
def test_commands_run_on_slurm(real_slurm: SlurmCluster, command: str, checkout: Path) -> None:
    real_slurm.run(command, cwd=checkout, env=ENVIRONMENT, timeout=180)


@pytest.mark.slurm
@pytest.mark.tensorflow
def test_the_batch_file_that_is_written_trains(real_slurm: SlurmCluster, checkout: Path) -> None:
    (write,) = (command for command in of_kind("slurm-resolver") if "> train.sbatch" in command)
    (submit,) = of_kind("sbatch")
    run(write, checkout)
    wait = submit.replace("sbatch ", "sbatch --wait --output=job.out ", 1)
    done = real_slurm.run(wait, cwd=checkout, env=ENVIRONMENT, timeout=180, check=False)
    output = (checkout / "job.out").read_text(encoding="utf-8")
    assert done.returncode == 0, output
    assert len(accuracies(output)) == 4


@pytest.mark.parametrize("command", of_kind("pip"))
def test_what_pip_is_asked_for_can_be_installed(command: str) -> None:
    words = shlex.split(command)
    match = re.fullmatch(r"\.\[([\w-]+)\]", words[-1])
    assert words[:2] == ["pip", "install"]
    assert match is not None
    metadata = configparser.ConfigParser()
    metadata.read(ROOT / "setup.cfg")
    assert match[1] in metadata["options.extras_require"]
    # All but the extra itself: TensorFlow would be fetched once more, for nothing new.
    words[-1] = "."
    run(shlex.join([*words, "--dry-run", "--no-deps", "--quiet"]))


@pytest.mark.tensorflow
def test_make_demo_trains() -> None:
    """In this environment: make's own takes minutes to install, and differs in nothing else."""
    venv = os.path.relpath(sys.prefix, ROOT)
    assert len(accuracies(run(f"make demo VENV={venv} --assume-old={venv}/installed"))) == 2


@pytest.mark.parametrize("command", of_kind("make"))
def test_make_knows_its_targets(command: str) -> None:
    run(f"{command} --dry-run")


@pytest.mark.parametrize(
    "page", sorted([ROOT / "README.md", *ROOT.glob("examples/**/README.md")]), ids=str
)
def test_links_lead_somewhere(page: Path) -> None:
    for target in re.findall(r"\]\(([^)#]+)", page.read_text(encoding="utf-8")):
        if not target.startswith("https:"):
            assert (page.parent / target).exists(), target
