"""The examples' READMEs: commands that work from the repository's folder, and what they must tell.

Nothing is trained here, which test_examples.py and others do: the words are read as the programs
would read them, batch files included, and Slurm is asked whether it takes the options.
"""

from __future__ import annotations

import os
import re
import shlex
import subprocess
from pathlib import Path
from typing import Dict, Iterator, List

import pytest
from bare_state import shell_commands
from command_words import check_words, program_after_options, words_of
from folders import EXAMPLES, ROOT
from slurm_cluster import Node, SlurmCluster, started
from slurm_installation import Installation

FOLDERS = sorted(path for path in EXAMPLES.iterdir() if path.is_dir() and path.name[0] not in "_.")
PAGES = [EXAMPLES / "README.md", *(folder / "README.md" for folder in FOLDERS)]
COMMANDS = list(dict.fromkeys(command for page in PAGES for command in shell_commands(page)))
BATCH_FILES = sorted(EXAMPLES.glob("*/*.sbatch"))
# programs of others, which are not there, or would change what is
NOT_READ = ("pip", "tensorboard", "scancel")
RECIPES = {  # where the recipe that an example follows has a public address
    "cluster_tutorial": "github.com/tensorflow/examples/",
    "cookbook": "github.com/ischlag/distributed-tensorflow-example",
    "custom_loop": "www.tensorflow.org/tutorials/distribute/multi_worker_with_ctl",
    "flags": "github.com/tensorflow/examples/",
    "legacy_server": "github.com/tensorflow/examples/",
    "parameter_server": "www.tensorflow.org/tutorials/distribute/parameter_server_training",
    "sync_replicas": "deepsense.ai/tensorflow-on-slurm-clusters/",
    "tf_config": "www.tensorflow.org/tutorials/distribute/multi_worker_with_keras",
}


def name_of(path: Path) -> str:
    return str(path.relative_to(EXAMPLES))


def of_kind(*kinds: str) -> List[str]:
    return [command for command in COMMANDS if words_of(command)[0] in kinds]


@pytest.mark.parametrize("command", [one for one in COMMANDS if one not in of_kind("sbatch")])
def test_commands_are_read_from_the_repositorys_folder(command: str) -> None:
    words = words_of(command)
    if words[0] not in NOT_READ:
        check_words(words, ROOT)


# Batch files


def batch_file_of(command: str) -> int:
    """Returns the place of the batch file among the words: after sbatch's options."""
    words = words_of(command)
    return next(place for place, word in enumerate(words) if word.endswith(".sbatch"))


@pytest.fixture(scope="module")
def started_by(tmp_path_factory: pytest.TempPathFactory) -> Dict[str, str]:
    """An environment in which srun and python only print the words that they were given."""
    folder = tmp_path_factory.mktemp("bin")
    for name in ("srun", "python"):
        (folder / name).write_text(f'#!/bin/bash\nprintf "%q " {name} "$@"; echo\n')
        (folder / name).chmod(0o755)
    job = {"SLURM_JOB_ID": "1", "SLURM_CPUS_PER_TASK": "2", "SLURM_NTASKS_HET_GROUP_1": "3"}
    return {"PATH": f"{folder}:{os.environ['PATH']}", **job}


def run_batch_file(file: str, arguments: List[str], folder: Path, env: Dict[str, str]) -> None:
    done = subprocess.run(
        ["bash", file, *arguments], cwd=folder, env=env, capture_output=True, text=True, timeout=180
    )
    assert done.returncode == 0, done.stderr
    (line,) = done.stdout.splitlines()
    check_words(shlex.split(line), folder)


@pytest.mark.parametrize("command", of_kind("sbatch"))
def test_batch_files_hand_their_arguments_on(started_by: Dict[str, str], command: str) -> None:
    words, place = words_of(command), batch_file_of(command)
    run_batch_file(words[place], words[place + 1 :], ROOT, started_by)


@pytest.mark.parametrize("file", BATCH_FILES, ids=name_of)
def test_batch_files_run_in_their_own_folder(started_by: Dict[str, str], file: Path) -> None:
    run_batch_file(file.name, [], file.parent, started_by)


@pytest.mark.parametrize("file", BATCH_FILES, ids=name_of)
def test_every_batch_file_is_told_of(file: Path) -> None:
    told = shell_commands(file.parent / "README.md")
    assert any(str(file.relative_to(ROOT)) in words_of(command) for command in told)


@pytest.fixture(scope="module")
def large_slurm(
    installation: Installation, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[SlurmCluster]:
    """A Slurm with as many nodes as the largest of the commands asks for."""
    nodes = [Node(f"n{number}", cpus=8, gpus=4) for number in range(1, 17)]
    directory = tmp_path_factory.mktemp("large")
    with started(SlurmCluster(nodes, directory, installation=installation)) as cluster:
        yield cluster


def without_program(words: List[str]) -> List[str]:
    """Returns the words with a program that does nothing."""
    return [*words[: -len(program_after_options(words))], "true"]


@pytest.mark.slurm
@pytest.mark.newest
def test_slurm_takes_what_the_pages_ask_for(large_slurm: SlurmCluster) -> None:
    """One step for all: each is a moment of Slurm's, and of a shell's on its login node more."""
    script = ["set -e"]
    for command in of_kind("sbatch"):
        words = words_of(command)
        script.append(f"sbatch --test-only {shlex.join(words[1:])}")
    for command in of_kind("srun"):
        components = [shlex.split(part) for part in shlex.join(words_of(command)).split(" : ")]
        script.append(" : ".join(shlex.join(without_program(one)) for one in components))
    for command in of_kind("salloc"):
        script.append(shlex.join(without_program(words_of(command))))
    large_slurm.run("\n".join(script), cwd=ROOT, timeout=120)


# What they tell


def test_the_index_names_every_example() -> None:
    index = (EXAMPLES / "README.md").read_text(encoding="utf-8")
    listed = re.findall(r"^\| \[(\w+)\]\((\w+)/\) \|", index, re.M)
    assert sorted(listed) == [(folder.name, folder.name) for folder in FOLDERS]
    for folder in FOLDERS:
        assert (folder / "train.sbatch").exists()


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_pages_tell_commands_from_output(page: Path) -> None:
    """Only what is marked as commands is tried."""
    text = page.read_text(encoding="utf-8")
    opened = re.findall(r"^```(.*)$", text, re.M)[::2]
    assert opened
    assert set(opened) <= {"sh", "text", "diff"}


@pytest.mark.parametrize("folder", FOLDERS, ids=name_of)
def test_pages_say_where_to_start_and_how_long_it_takes(folder: Path) -> None:
    text = " ".join((folder / "README.md").read_text(encoding="utf-8").split())
    assert "rom the repository's folder" in text
    assert re.search(r"about [\w ]*(seconds|minutes?|half a minute)\b", text, re.I)
    assert "```text" in text
    assert RECIPES.get(folder.name, "") in text
