"""The examples' READMEs: what they must tell, and that no command names what is not there.

test_examples.py runs those commands that this machine can run.
"""

from __future__ import annotations

import re
import shlex
import shutil
import subprocess
from pathlib import Path
from typing import Iterator

import pytest
from bare_state import shell_commands
from folders import EXAMPLES, ROOT
from slurm_cluster import Node, SlurmCluster, started
from slurm_installation import Installation

FOLDERS = sorted(path for path in EXAMPLES.iterdir() if path.is_dir() and path.name[0] not in "_.")
PAGES = [EXAMPLES / "README.md", *(folder / "README.md" for folder in FOLDERS)]
COMMANDS = list(dict.fromkeys(command for page in PAGES for command in shell_commands(page)))
BATCH_FILES = sorted(EXAMPLES.glob("*/*.sbatch"))


def name_of(path: Path) -> str:
    return str(path.relative_to(EXAMPLES))


@pytest.mark.parametrize("command", [one for one in COMMANDS if "examples/" in one])
def test_commands_name_programs_and_options_that_are_there(command: str) -> None:
    words = shlex.split(command, comments=True)
    place = next(place for place, word in enumerate(words) if word.startswith("examples/"))
    program = ROOT / words[place]
    assert program.is_file()
    known = "".join(path.read_text(encoding="utf-8") for path in program.parent.glob("*.py"))
    for word in words[place + 1 :]:
        if word.startswith("--"):
            assert f'"{word.partition("=")[0]}"' in known, word


# Batch files


@pytest.mark.parametrize("file", BATCH_FILES, ids=name_of)
def test_batch_files_are_told_of_and_hand_their_arguments_on(file: Path) -> None:
    told = " ".join(shell_commands(file.parent / "README.md"))
    assert str(file.relative_to(ROOT)) in told
    assert '"$@"' in file.read_text(encoding="utf-8")


@pytest.mark.skipif(shutil.which("shellcheck") is None, reason="shellcheck is not installed")
def test_batch_files_are_clean() -> None:
    files = [*BATCH_FILES, *EXAMPLES.glob("*/*.sh")]
    done = subprocess.run(["shellcheck", *files], capture_output=True, text=True)
    assert done.returncode == 0, done.stdout


@pytest.fixture(scope="module")
def large_slurm(
    installation: Installation, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[SlurmCluster]:
    """A Slurm with as many nodes as the largest of the commands asks for."""
    nodes = [Node(f"n{number}", cpus=8, gpus=4) for number in range(1, 17)]
    directory = tmp_path_factory.mktemp("large")
    with started(SlurmCluster(nodes, directory, installation=installation)) as cluster:
        yield cluster


@pytest.mark.slurm
@pytest.mark.newest
def test_slurm_takes_what_the_pages_ask_for(large_slurm: SlurmCluster) -> None:
    """One shell for all of them: each of its own takes a moment more."""
    commands = [one for one in COMMANDS if one.split()[0] == "sbatch"]
    tested = [one.replace("sbatch", "sbatch --test-only", 1) for one in commands]
    large_slurm.run("\n".join(["set -e", *tested]), cwd=ROOT, timeout=120)


# What they tell


def test_the_index_names_every_example() -> None:
    index = (EXAMPLES / "README.md").read_text(encoding="utf-8")
    listed = re.findall(r"^\| \[(\w+)\]\((\w+)/\) \|", index, re.M)
    assert sorted(listed) == [(folder.name, folder.name) for folder in FOLDERS]
    for folder in FOLDERS:
        assert (folder / "train.sbatch").exists()
